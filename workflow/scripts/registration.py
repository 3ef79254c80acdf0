"""What a run may say of its registration, and what the decision rule says of it."""

from replay.job import recorded
from replay.registration import assess
from replay.storage import write_json


def main(snakemake):
    with recorded(snakemake):
        job, data = snakemake.params.job, snakemake.input
        result = assess(
            job["registration"], data.lock or None, job["jobs"], data.records, data.analyses
        )
        write_json(snakemake.output[0], result)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
