"""The figures as PDF and PNG, and what each is drawn from as CSV."""

from replay.figures import draw_all
from replay.job import recorded
from replay.tables import with_contents, with_verdicts


def main(snakemake):
    with recorded(snakemake):
        data, output = snakemake.input, snakemake.output
        rows = with_verdicts(snakemake.params.job["rows"], data.invariance)
        rows = with_contents(rows, records=data.records, analysis=data.analyses)
        draw_all(rows, output.pdf, output.png, output.csv)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
