"""Generate the trunks of one shard of a cohort, with their KV state."""

from replay.devices import check_granted
from replay.job import recorded
from replay.trunks import run


def main(snakemake):
    with recorded(snakemake) as (console, sidecar):
        job, data = snakemake.params.job, snakemake.input
        check_granted(job["settings"]["engine"], snakemake.resources.gpu)
        began = run(
            settings=job["settings"],
            code=job["code"],
            shard=snakemake.wildcards.shard,
            cohort_file=data.cohort,
            scan_folder=data.scan,
            dataset=data.dataset,
            model=data.model,
            folder=snakemake.output[0],
            console=console,
        )
        sidecar.took_over(began)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
