"""Table 2, what the controls say, as CSV, Markdown and LaTeX."""

from replay.controls_table import write_controls
from replay.job import recorded
from replay.tables import with_contents, with_verdicts


def main(snakemake):
    with recorded(snakemake):
        data, output = snakemake.input, snakemake.output
        rows = with_verdicts(snakemake.params.job["rows"], data.invariance)
        rows = with_contents(rows, analysis=data.analyses)
        write_controls(rows, output.csv, output.md, output.tex)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
