"""Replay-noise audit: is re-feeding a transcript the same as resuming the state it was in?

`snakemake --cores 1 all` makes every table and figure; the name of a configuration as the target
brings that one up to date and nothing else.
"""

from snakemake.utils import min_version

min_version("9.20")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


if STUDY.is_published:

    include: "workflow/rules/published.smk"

else:

    include: "workflow/rules/inputs.smk"
    include: "workflow/rules/invariance.smk"
    include: "workflow/rules/trunks.smk"
    include: "workflow/rules/passes.smk"
    include: "workflow/rules/records.smk"


include: "workflow/rules/analysis.smk"
include: "workflow/rules/planning.smk"
include: "workflow/rules/registration.smk"
include: "workflow/rules/report.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        f"{RESULTS}/report/index.html",
        multiext(f"{RESULTS}/tables/table1", ".csv", ".md", ".tex"),
        multiext(f"{RESULTS}/tables/table2", ".csv", ".md", ".tex"),
        multiext(f"{RESULTS}/tables/statistics", ".csv", ".md", ".tex"),
        expand(
            f"{RESULTS}/figures/figure{{n}}.{{format}}",
            n=FIGURES,
            format=["pdf", "png", "csv"],
        ),
        per_configuration("records/{configuration}.json"),
        per_configuration("analysis/{configuration}.json"),


if STUDY.is_published:

    rule published:
        input:
            rules.all.input,
            f"{RESULTS}/claims.csv",


include: "workflow/rules/audit.smk"


for configuration in STUDY.configurations:
    if workflow.is_rule(configuration):
        raise WorkflowError(
            f"configurations.{configuration}: the name of a rule; choose another"
        )

    rule:
        name:
            configuration
        input:
            f"{RESULTS}/analysis/{configuration}.json",


onstart:
    hold_lock("results")
    if STUDY.note:
        logger.warning(STUDY.note)
    if lacking := shortage(
        max((gpus(t.engine) for t in STUDY.trunk_sets.values()), default=0)
    ):
        logger.warning(lacking)


onsuccess:
    # Kept until now: a job that dies between its end and Snakemake's note of it is run again.
    for output in {output for job in workflow.dag.jobs for output in job.output}:
        clear_workspace(output)


onerror:
    print(
        f"Failed. The error above names the log of the job, under {RESULTS}/logs or resources/logs,"
        " which says why. Finished problems are kept: the same command goes on."
    )
