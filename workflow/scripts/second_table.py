"""The second table, beyond the paper, as CSV, Markdown and LaTeX."""

from replay.job import logged
from replay.statistics_table import write_statistics
from replay.storage import read_json


def main(snakemake):
    with logged(snakemake.log[0]):
        rows = [
            row | {"analysis": read_json(path)}
            for row, path in zip(snakemake.params.job["rows"], snakemake.input, strict=True)
        ]
        output = snakemake.output
        write_statistics(rows, output.csv, output.md, output.tex)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
