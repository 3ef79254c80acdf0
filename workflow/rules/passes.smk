"""In: trunks and their KV state. Out: raw continuations and probes, one file a pass. Engine jobs."""


rule passes:
    input:
        trunks=trunk_inputs,
        model=model_of,
    output:
        directory(f"{RESULTS}/passes/{{configuration}}/{{shard}}"),
    log:
        f"{RESULTS}/logs/passes/{{configuration}}/{{shard}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/passes/{{configuration}}/{{shard}}.tsv"
    conda:
        of_engine(engine_env, STUDY.configurations, "configuration")
    threads: of_engine(cpus, STUDY.configurations, "configuration")
    resources:
        gpu=of_engine(gpus, STUDY.configurations, "configuration"),
        cpu_engine=of_engine(cpu_engines, STUDY.configurations, "configuration"),
        mem_mb=of_engine(memory_mb, STUDY.configurations, "configuration"),
        runtime=ENGINE_MINUTES,
    params:
        job=lambda wildcards: {
            "cohorts": configuration_of(wildcards).cohorts,
            "settings": configuration_of(wildcards).select(
                "engine", "pivots", "continuations", "passes", "pass_order"
            ),
            "code": code_digest("passes"),
        },
    script:
        "../scripts/passes.py"
