"""How many problems and continuations a study needs, as CSV and Markdown."""

from replay.job import logged
from replay.planning import write_plan
from replay.tables import with_contents


def main(snakemake):
    with logged(snakemake.log[0]):
        data, rows = snakemake.input, snakemake.params.job["rows"]
        rows = with_contents(rows, records=data.records, analysis=data.analyses)
        write_plan(rows, snakemake.output.csv, snakemake.output.md)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
