"""In: resources/. Out: whether each engine keeps what its numerics promise. Engine jobs."""


localrules:
    invariance,


rule check_invariance:
    input:
        dataset=lambda wildcards: f"resources/datasets/{engine_set_of(wildcards).dataset}.jsonl",
        model=lambda wildcards: f"resources/models/{engine_set_of(wildcards).model}",
    output:
        f"{RESULTS}/invariance/{{engine_set}}.json",
    log:
        f"{RESULTS}/logs/invariance/{{engine_set}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/invariance/{{engine_set}}.tsv"
    conda:
        of_engine(engine_env, STUDY.engine_sets, "engine_set")
    threads: of_engine(cpus, STUDY.engine_sets, "engine_set")
    resources:
        gpu=of_engine(gpus, STUDY.engine_sets, "engine_set"),
        cpu_engine=of_engine(cpu_engines, STUDY.engine_sets, "engine_set"),
        mem_mb=of_engine(memory_mb, STUDY.engine_sets, "engine_set"),
        runtime=ENGINE_MINUTES,
    params:
        job=lambda wildcards: {
            "settings": engine_set_of(wildcards).settings,
            "code": code_digest("check_invariance"),
        },
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
