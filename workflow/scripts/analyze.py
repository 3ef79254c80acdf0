"""Analyse the records of one configuration."""

from replay.analysis import analyze
from replay.job import logged
from replay.storage import read_json, write_json


def main(snakemake):
    with logged(snakemake.log[0]):
        records = read_json(snakemake.input[0])
        write_json(snakemake.output[0], analyze(records["pivots"], records["config"]["k"]))


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
