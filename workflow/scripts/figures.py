"""The figures as PDF and PNG, and what each is drawn from as CSV."""

from replay.figures import draw_all
from replay.job import logged
from replay.storage import read_json
from replay.tables import with_verdicts


def main(snakemake):
    with logged(snakemake.log[0]):
        data = snakemake.input
        rows = [
            row | {"records": read_json(records), "analysis": read_json(analysis)}
            for row, records, analysis in zip(
                with_verdicts(snakemake.params.job["rows"], data.invariance),
                data.records,
                data.analyses,
                strict=True,
            )
        ]
        output = snakemake.output
        draw_all(rows, output.pdf, output.png, output.csv)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
