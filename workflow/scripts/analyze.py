"""Analyse the records of one configuration."""

from replay.analysis import analyze
from replay.beyond import beyond
from replay.controls import controls
from replay.job import recorded
from replay.storage import read_json, write_json


def main(snakemake):
    with recorded(snakemake):
        records = read_json(snakemake.input[0])
        pivots, k = records["pivots"], records["config"]["k"]
        write_json(snakemake.output[0], analyze(pivots, k) | beyond(pivots, k) | controls(records))


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
