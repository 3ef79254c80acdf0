"""How many problems and continuations a study needs, as CSV and Markdown."""

from replay.job import recorded
from replay.planning import write_plan
from replay.tables import with_contents


def main(snakemake):
    with recorded(snakemake):
        data, rows = snakemake.input, snakemake.params.job["rows"]
        rows = with_contents(rows, records=data.records, analysis=data.analyses)
        write_plan(rows, snakemake.output.csv, snakemake.output.md)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
