"""Run the replay passes over one shard of a configuration."""

from replay.devices import check_granted
from replay.job import recorded
from replay.passes import run


def main(snakemake):
    with recorded(snakemake) as (console, sidecar):
        job, data = snakemake.params.job, snakemake.input
        check_granted(job["settings"]["engine"], snakemake.resources.gpu)
        began = run(
            cohorts=job["cohorts"],
            settings=job["settings"],
            code=job["code"],
            trunk_folders=data.trunks,
            model=data.model,
            folder=snakemake.output[0],
            console=console,
        )
        sidecar.took_over(began)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
