"""The second table, beyond the paper, as CSV, Markdown and LaTeX."""

from replay.job import recorded
from replay.statistics_table import write_statistics
from replay.tables import with_contents


def main(snakemake):
    with recorded(snakemake):
        rows = with_contents(snakemake.params.job["rows"], analysis=snakemake.input)
        output = snakemake.output
        write_statistics(rows, output.csv, output.md, output.tex)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
