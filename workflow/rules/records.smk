"""In: trunks and passes. Out: grades, records and facts of the shards. No engine."""


rule grade:
    input:
        trunks=of("configuration", all_trunks),
        passes=per_shard("passes/{configuration}/{shard}"),
        dataset=of("configuration", dataset_of),
        model=of("configuration", model_of),
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
        job=of(
            "configuration",
            lambda c: c.select("grading", "passes") | {"code": code_digest("grade")},
        ),
    script:
        "../scripts/grade.py"


rule records:
    input:
        passes=per_shard("passes/{configuration}/{shard}"),
        grades=f"{RESULTS}/grades/{{configuration}}",
    output:
        records=f"{RESULTS}/records/{{configuration}}.json",
        shards=f"{RESULTS}/shards/{{configuration}}.json",
    log:
        f"{RESULTS}/logs/records/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        job=of(
            "configuration",
            lambda c: {
                "settings": c.published_settings,
                "code": code_digest("records"),
            },
        ),
    script:
        "../scripts/records.py"
