"""Grade every stored continuation and trunk of a configuration by every grader."""

from replay.grades import run
from replay.job import recorded


def main(snakemake):
    with recorded(snakemake):
        job, data = snakemake.params.job, snakemake.input
        run(
            grading=job["grading"],
            passes=job["passes"],
            trunk_folders=data.trunks,
            passes_folders=data.passes,
            dataset=data.dataset,
            model=data.model,
            folder=snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
