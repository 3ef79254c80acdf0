"""The self-checks of all engines of a study as one table."""

from replay.job import recorded
from replay.tables import write_invariance


def main(snakemake):
    with recorded(snakemake) as (console, _):
        output = snakemake.output
        write_invariance(snakemake.input, output.csv, output.md, console)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
