"""In: records and analyses. Out: the second table, beyond the paper, and the plan of a study."""


localrules:
    statistics,
    plan,


rule statistics:
    input:
        per_configuration("analysis/{configuration}.json"),
    output:
        csv=report(
            f"{RESULTS}/tables/statistics.csv",
            caption="../report/statistics.rst",
            category="Tables",
            labels={"table": "Beyond the paper"},
        ),
        md=f"{RESULTS}/tables/statistics.md",
        tex=f"{RESULTS}/tables/statistics.tex",
    log:
        f"{RESULTS}/logs/statistics.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"rows": STUDY.rows, "code": code_digest("second_table")},
    script:
        "../scripts/second_table.py"


rule plan:
    input:
        records=per_configuration("records/{configuration}.json"),
        analyses=per_configuration("analysis/{configuration}.json"),
    output:
        csv=f"{RESULTS}/tables/plan.csv",
        md=f"{RESULTS}/tables/plan.md",
    log:
        f"{RESULTS}/logs/plan.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"rows": STUDY.rows, "code": code_digest("plan")},
    script:
        "../scripts/plan.py"
