"""In: trunks and their KV state. Out: raw continuations and probes, one file a pass. Engine jobs."""


rule passes:
    input:
        trunks=of("configuration", trunk_inputs),
        model=of("configuration", model_of),
    output:
        directory(f"{RESULTS}/passes/{{configuration}}/{{shard}}"),
    log:
        f"{RESULTS}/logs/passes/{{configuration}}/{{shard}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/passes/{{configuration}}/{{shard}}.tsv"
    conda:
        of_engine("configuration", engine_env)
    threads: of_engine("configuration", cpus)
    resources:
        gpu=of_engine("configuration", gpus),
        cpu_engine=of_engine("configuration", cpu_engines),
        mem_mb=of_engine("configuration", memory_mb),
        runtime=ENGINE_MINUTES,
    params:
        job=of(
            "configuration",
            lambda c: {
                "cohorts": c.cohorts,
                "settings": c.select(
                    "engine", "pivots", "continuations", "passes", "pass_order"
                ),
                "code": code_digest("passes"),
            },
        ),
    script:
        "../scripts/passes.py"
