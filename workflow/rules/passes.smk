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
        of_engine(engine_env, configuration_of)
    threads: of_engine(cpus, configuration_of)
    resources:
        gpu=of_engine(gpus, configuration_of),
        cpu_engine=of_engine(cpu_engines, configuration_of),
        mem_mb=of_engine(memory_mb, configuration_of),
        runtime=ENGINE_MINUTES,
    params:
        job=lambda wildcards: {
            "cohorts": configuration_of(wildcards).cohorts,
            "settings": configuration_of(wildcards).select(
                "engine", "pivots", "continuations"
            ),
            "code": code_digest("passes"),
        },
    script:
        "../scripts/passes.py"
