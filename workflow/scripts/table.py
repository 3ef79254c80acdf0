"""Table 1 as CSV, Markdown and LaTeX."""

from replay.job import logged
from replay.tables import table1, with_contents, with_verdicts, write_table


def main(snakemake):
    with logged(snakemake.log[0]):
        job, data, output = snakemake.params.job, snakemake.input, snakemake.output
        if job["note"]:
            print(job["note"])
        rows = with_verdicts(job["rows"], data.invariance)
        rows = with_contents(rows, analysis=data.analyses)
        write_table(table1(rows), output.csv, output.md, output.tex, job["note"])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
