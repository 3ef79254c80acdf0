"""In: resources/. Out: cohorts, transcripts and decode-time KV state. Engine jobs."""


rule screen:
    input:
        dataset=of("trunk_set", dataset_of),
        model=of("trunk_set", model_of),
    output:
        cohort=f"{RESULTS}/screen/{{trunk_set}}/cohort.json",
        scan=directory(f"{RESULTS}/screen/{{trunk_set}}/scan"),
    log:
        f"{RESULTS}/logs/screen/{{trunk_set}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/screen/{{trunk_set}}.tsv"
    conda:
        of_engine("trunk_set", engine_env)
    threads: of_engine("trunk_set", cpus)
    resources:
        gpu=of_engine("trunk_set", gpus),
        cpu_engine=of_engine("trunk_set", cpu_engines),
        mem_mb=of_engine("trunk_set", memory_mb),
        runtime=ENGINE_MINUTES,
    params:
        job=of(
            "trunk_set",
            lambda t: {
                "cohort": t.cohort.name,
                "settings": t.settings,
                "code": code_digest("screen"),
            },
        ),
    script:
        "../scripts/screen.py"


rule trunks:
    input:
        cohort=f"{RESULTS}/screen/{{trunk_set}}/cohort.json",
        scan=f"{RESULTS}/screen/{{trunk_set}}/scan",
        dataset=of("trunk_set", dataset_of),
        model=of("trunk_set", model_of),
    output:
        directory(f"{RESULTS}/trunks/{{trunk_set}}/{{shard}}"),
    log:
        f"{RESULTS}/logs/trunks/{{trunk_set}}/{{shard}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/trunks/{{trunk_set}}/{{shard}}.tsv"
    conda:
        of_engine("trunk_set", engine_env)
    threads: of_engine("trunk_set", cpus)
    resources:
        gpu=of_engine("trunk_set", gpus),
        cpu_engine=of_engine("trunk_set", cpu_engines),
        mem_mb=of_engine("trunk_set", memory_mb),
        runtime=ENGINE_MINUTES,
    params:
        job=of(
            "trunk_set",
            lambda t: {"settings": t.settings, "code": code_digest("trunks")},
        ),
    script:
        "../scripts/trunks.py"
