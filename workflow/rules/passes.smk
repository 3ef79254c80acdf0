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
        lambda wildcards: engine_env(configuration_of(wildcards).sections["engine"])
    resources:
        gpu=lambda wildcards: gpus(configuration_of(wildcards).sections["engine"]),
        cpu_engine=lambda wildcards: cpu_engines(
            configuration_of(wildcards).sections["engine"]
        ),
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
