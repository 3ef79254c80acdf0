"""How many problems and continuations a study needs, as CSV and Markdown."""

from replay.job import logged
from replay.planning import write_plan
from replay.storage import read_json


def main(snakemake):
    with logged(snakemake.log[0]):
        data = snakemake.input
        rows = [
            row | {"records": read_json(records), "analysis": read_json(analysis)}
            for row, records, analysis in zip(
                snakemake.params.job["rows"], data.records, data.analyses, strict=True
            )
        ]
        write_plan(rows, snakemake.output.csv, snakemake.output.md)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
