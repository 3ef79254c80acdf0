"""In: the paper's published record files. Out: records of its configurations, and its claims."""


localrules:
    download,
    published_records,
    claims,


if STUDY.config["published"]["download"]:

    rule download:
        output:
            f"{published.DOWNLOADS}/{{file}}.json",
        log:
            "resources/logs/download/{file}.log",
        wildcard_constraints:
            file=one_of(STUDY.config["paper"]["records"]),
        retries: 2
        conda:
            "../../envs/analysis.yaml"
        params:
            job=lambda wildcards: {
                "url": published.url(STUDY.config["paper"], wildcards.file),
                "sha256": STUDY.config["paper"]["records"][wildcards.file]["sha256"],
                "code": code_digest("download"),
            },
        script:
            "../scripts/download.py"


rule published_records:
    input:
        of(
            "configuration",
            lambda c: [
                str(published.source(STUDY.config["published"], f)) for f in c.files
            ],
        ),
    output:
        f"{RESULTS}/records/{{configuration}}.json",
    log:
        f"{RESULTS}/logs/records/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job=of(
            "configuration",
            lambda c: {
                "sha256": [
                    STUDY.config["paper"]["records"][f]["sha256"] for f in c.files
                ],
                "code": code_digest(
                    "published_records", data=(published.SCHEMA_PATH,)
                ),
            },
        ),
    script:
        "../scripts/published_records.py"


rule claims:
    input:
        records=per_configuration("records/{configuration}.json"),
        analyses=per_configuration("analysis/{configuration}.json"),
    output:
        report(
            f"{RESULTS}/claims.csv",
            caption="../report/claims.rst",
            category="Claims",
            labels={"table": "Claims of the paper"},
        ),
    log:
        f"{RESULTS}/logs/claims.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={
            "configurations": list(STUDY.configurations),
            "absent": STUDY.absent,
            "code": code_digest("claims"),
        },
    script:
        "../scripts/claims.py"
