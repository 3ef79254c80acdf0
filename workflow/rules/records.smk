"""In: trunks and passes. Out: grades and records. No engine."""


rule grade:
    input:
        trunks=trunk_inputs,
        passes=f"{RESULTS}/passes/{{configuration}}/{{shard}}",
        dataset=dataset_of,
        model=model_of,
    output:
        directory(f"{RESULTS}/grades/{{configuration}}/{{shard}}"),
    log:
        f"{RESULTS}/logs/grade/{{configuration}}/{{shard}}.log",
    conda:
        "../../envs/analysis.yaml"
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
        grades=per_shard("grades/{configuration}/{shard}"),
    output:
        f"{RESULTS}/records/{{configuration}}.json",
    log:
        f"{RESULTS}/logs/records/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job=lambda wildcards: {
            "settings": configuration_of(wildcards).published_settings,
            "code": code_digest("records"),
        },
    script:
        "../scripts/records.py"
