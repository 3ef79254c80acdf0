"""Fetch one dataset as canonical JSON Lines."""

from replay.datasets import fetch
from replay.job import recorded


def main(snakemake):
    with recorded(snakemake):
        fetch(snakemake.params.job["entry"], snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
