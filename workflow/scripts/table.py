"""Table 1 as CSV, Markdown and LaTeX."""

from replay.job import recorded
from replay.registration import stated
from replay.storage import read_json
from replay.tables import table1, ungraded, with_contents, with_verdicts, write_table


def main(snakemake):
    with recorded(snakemake):
        job, data, output = snakemake.params.job, snakemake.input, snakemake.output
        if job["note"]:
            print(job["note"])
        rows = with_verdicts(job["rows"], data.invariance)
        rows = with_contents(rows, analysis=data.analyses)
        statements = read_json(data.registration)["configurations"]
        table = table1(rows)
        table["registration"] = [statements[row["name"]]["state"] for row in rows]
        notes = [note for note in (job["note"], ungraded(rows)) if note]
        notes += [stated(*of) for of in statements.items()]
        write_table(table, output.csv, output.md, output.tex, notes)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
