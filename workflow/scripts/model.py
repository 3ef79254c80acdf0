"""Fetch one checkpoint at its pinned version."""

from replay.job import recorded
from replay.models import fetch


def main(snakemake):
    with recorded(snakemake):
        fetch(snakemake.wildcards.model, snakemake.params.job["entry"], snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
