"""Check one engine for what its numerics promise."""

from replay.devices import check_granted
from replay.invariance import run
from replay.job import recorded


def main(snakemake):
    with recorded(snakemake):
        job, data = snakemake.params.job, snakemake.input
        check_granted(job["settings"]["engine"], snakemake.resources.gpu)
        run(job["settings"], data.dataset, data.model, snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
