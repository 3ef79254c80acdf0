"""The data of the page's pivot browser, for one configuration."""

from replay.browser import run
from replay.job import recorded


def main(snakemake):
    with recorded(snakemake):
        data = snakemake.input
        run(
            records_file=data.records,
            passes_folders=data.passes,
            grades_folder=data.grades or None,
            trunk_folders=data.trunks,
            dataset=data.dataset or None,
            model=data.model or None,
            budget=snakemake.params.job["budget"],
            output=snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
