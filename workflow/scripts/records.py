"""Join passes and grades into one record per pivot."""

from replay.job import recorded
from replay.records import run


def main(snakemake):
    with recorded(snakemake):
        run(
            snakemake.params.job["settings"],
            snakemake.input.passes,
            snakemake.input.grades,
            snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
