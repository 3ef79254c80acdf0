"""In: resources/. Out: whether each engine keeps what its numerics promise. Engine jobs."""


localrules:
    invariance,


rule check_invariance:
    input:
        dataset=of("engine_set", dataset_of),
        model=of("engine_set", model_of),
    output:
        f"{RESULTS}/invariance/{{engine_set}}.json",
    log:
        f"{RESULTS}/logs/invariance/{{engine_set}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/invariance/{{engine_set}}.tsv"
    conda:
        of_engine("engine_set", engine_env)
    threads: of_engine("engine_set", cpus)
    resources:
        gpu=of_engine("engine_set", gpus),
        cpu_engine=of_engine("engine_set", cpu_engines),
        mem_mb=of_engine("engine_set", memory_mb),
        runtime=ENGINE_MINUTES,
    params:
        job=of(
            "engine_set",
            lambda e: {
                "settings": e.settings,
                "code": code_digest("check_invariance"),
            },
        ),
    script:
        "../scripts/check_invariance.py"


rule invariance:
    input:
        expand(
            f"{RESULTS}/invariance/{{engine_set}}.json", engine_set=STUDY.engine_sets
        ),
    output:
        csv=f"{RESULTS}/tables/invariance.csv",
        md=f"{RESULTS}/tables/invariance.md",
    log:
        f"{RESULTS}/logs/invariance.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"code": code_digest("invariance")},
    script:
        "../scripts/invariance.py"
