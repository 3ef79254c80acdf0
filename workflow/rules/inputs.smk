"""In: the network or local files. Out: resources/. A checkpoint and a dataset, pinned."""


localrules:
    model,
    dataset,


rule model:
    input:
        lambda wildcards: local_source(STUDY.config["models"][wildcards.model]),
    output:
        directory("resources/models/{model}"),
    log:
        "resources/logs/model/{model}.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job=lambda wildcards: {
            "entry": STUDY.config["models"][wildcards.model],
            "code": code_digest("model"),
        },
    script:
        "../scripts/model.py"


rule dataset:
    input:
        lambda wildcards: local_source(STUDY.config["datasets"][wildcards.dataset]),
    output:
        "resources/datasets/{dataset}.jsonl",
    log:
        "resources/logs/dataset/{dataset}.log",
    priority: 100
    conda:
        "../../envs/analysis.yaml"
    params:
        job=lambda wildcards: {
            "entry": STUDY.config["datasets"][wildcards.dataset],
            "code": code_digest("dataset"),
        },
    script:
        "../scripts/dataset.py"
