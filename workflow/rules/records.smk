"""In: trunks and passes. Out: grades and records. No engine."""


rule grade:
    input:
        trunks=all_trunks,
        passes=per_shard("passes/{configuration}/{shard}"),
        dataset=dataset_of,
        model=model_of,
    output:
        directory(f"{RESULTS}/grades/{{configuration}}"),
    log:
        f"{RESULTS}/logs/grade/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        job=lambda wildcards: {
            **configuration_of(wildcards).select("grading", "passes"),
            "code": code_digest("grade"),
        },
    script:
        "../scripts/grade.py"


rule records:
    input:
        passes=per_shard("passes/{configuration}/{shard}"),
        grades=f"{RESULTS}/grades/{{configuration}}",
    output:
        f"{RESULTS}/records/{{configuration}}.json",
    log:
        f"{RESULTS}/logs/records/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        job=lambda wildcards: {
            "settings": configuration_of(wildcards).published_settings,
            "code": code_digest("records"),
        },
    script:
        "../scripts/records.py"
