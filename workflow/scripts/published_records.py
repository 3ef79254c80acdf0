"""Check the published record files of one configuration and pool them."""

from replay.job import recorded
from replay.published import pooled
from replay.storage import write_json


def main(snakemake):
    with recorded(snakemake):
        name, job = snakemake.wildcards.configuration, snakemake.params.job
        write_json(snakemake.output[0], pooled(name, snakemake.input, job["sha256"]))


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
