"""In: everything that a run made, as it is. Out: a verdict by exit code, and an RO-Crate."""


localrules:
    audit,
    crate,


# Without inputs: to bring them up to date first would hide what is to be found.
rule audit:
    log:
        f"{RESULTS}/logs/audit.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={
            "targets": [TARGET],
            "optional": OPTIONAL,
            "code": code_digest("audit"),
        },
    script:
        "../scripts/audit.py"


rule crate:
    input:
        rules.published.input if STUDY.is_published else rules.all.input,
        page=f"{RESULTS}/report/index.html",
        registration=f"{RESULTS}/registration.json",
    output:
        metadata=f"{RESULTS}/ro-crate-metadata.json",
        code=directory(f"{RESULTS}/code"),
    log:
        f"{RESULTS}/logs/crate.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"target": TARGET, "code": code_digest("crate")},
    script:
        "../scripts/crate.py"
