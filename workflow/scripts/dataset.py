"""Fetch one dataset as canonical JSON Lines."""

from replay.datasets import fetch
from replay.job import logged


def main(snakemake):
    with logged(snakemake.log[0]):
        fetch(snakemake.params.job["entry"], snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
