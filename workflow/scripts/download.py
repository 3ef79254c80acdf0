"""Download one published record file."""

from replay.job import recorded
from replay.published import download


def main(snakemake):
    with recorded(snakemake):
        job = snakemake.params.job
        download(job["url"], job["sha256"], snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
