"""In: records. Out: one analysis a configuration."""


rule analyze:
    input:
        f"{RESULTS}/records/{{configuration}}.json",
    output:
        f"{RESULTS}/analysis/{{configuration}}.json",
    log:
        f"{RESULTS}/logs/analyze/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        job={"code": code_digest("analyze")},
    script:
        "../scripts/analyze.py"
