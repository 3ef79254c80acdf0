"""In: records, analyses and the lock. Out: whether the run is registered, and its verdicts."""


localrules:
    register,
    registration,


VERDICT_CODE = {rule: code_digest(rule) for rule in registration.VERDICT_RULES}


# Without output: Snakemake would make a lock again where a module has changed.
rule register:
    log:
        f"{RESULTS}/logs/register.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={
            "registration": REGISTRATION,
            "verdict_code": VERDICT_CODE,
            "code": code_digest("register"),
        },
    script:
        "../scripts/register.py"


rule registration:
    input:
        records=per_configuration("records/{configuration}.json"),
        analyses=per_configuration("analysis/{configuration}.json"),
        # Made again whenever an engine job was, of which the sidecars say when it began.
        grades=measured(per_configuration("grades/{configuration}")),
        lock=LOCK_FILE,
    output:
        f"{RESULTS}/registration.json",
    log:
        f"{RESULTS}/logs/registration.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={
            "registration": REGISTRATION,
            "jobs": ENGINE_JOBS,
            "verdict_code": VERDICT_CODE,
            "code": code_digest("registration"),
        },
    script:
        "../scripts/registration.py"
