"""In: resources/. Out: cohorts, transcripts and decode-time KV state. Engine jobs."""


rule screen:
    input:
        dataset=lambda wildcards: f"resources/datasets/{trunk_set_of(wildcards).dataset}.jsonl",
        model=lambda wildcards: f"resources/models/{trunk_set_of(wildcards).model}",
    output:
        cohort=f"{RESULTS}/screen/{{trunk_set}}/cohort.json",
        scan=directory(f"{RESULTS}/screen/{{trunk_set}}/scan"),
    log:
        f"{RESULTS}/logs/screen/{{trunk_set}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/screen/{{trunk_set}}.tsv"
    conda:
        of_engine(engine_env, STUDY.trunk_sets, "trunk_set")
    threads: of_engine(cpus, STUDY.trunk_sets, "trunk_set")
    resources:
        gpu=of_engine(gpus, STUDY.trunk_sets, "trunk_set"),
        cpu_engine=of_engine(cpu_engines, STUDY.trunk_sets, "trunk_set"),
        mem_mb=of_engine(memory_mb, STUDY.trunk_sets, "trunk_set"),
        runtime=ENGINE_MINUTES,
    params:
        job=lambda wildcards: {
            "cohort": trunk_set_of(wildcards).cohort.name,
            "settings": trunk_set_of(wildcards).settings,
            "code": code_digest("screen"),
        },
    script:
        "../scripts/screen.py"


rule trunks:
    input:
        cohort=f"{RESULTS}/screen/{{trunk_set}}/cohort.json",
        scan=f"{RESULTS}/screen/{{trunk_set}}/scan",
        dataset=lambda wildcards: f"resources/datasets/{trunk_set_of(wildcards).dataset}.jsonl",
        model=lambda wildcards: f"resources/models/{trunk_set_of(wildcards).model}",
    output:
        directory(f"{RESULTS}/trunks/{{trunk_set}}/{{shard}}"),
    log:
        f"{RESULTS}/logs/trunks/{{trunk_set}}/{{shard}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/trunks/{{trunk_set}}/{{shard}}.tsv"
    conda:
        of_engine(engine_env, STUDY.trunk_sets, "trunk_set")
    threads: of_engine(cpus, STUDY.trunk_sets, "trunk_set")
    resources:
        gpu=of_engine(gpus, STUDY.trunk_sets, "trunk_set"),
        cpu_engine=of_engine(cpu_engines, STUDY.trunk_sets, "trunk_set"),
        mem_mb=of_engine(memory_mb, STUDY.trunk_sets, "trunk_set"),
        runtime=ENGINE_MINUTES,
    params:
        job=lambda wildcards: {
            "settings": trunk_set_of(wildcards).settings,
            "code": code_digest("trunks"),
        },
    script:
        "../scripts/trunks.py"
