"""Every claim of the paper that records can decide, recomputed."""

from replay.claims import check, write_claims
from replay.job import recorded
from replay.storage import read_json


def main(snakemake):
    with recorded(snakemake):
        job, data = snakemake.params.job, snakemake.input
        contents = {
            name: (read_json(records), read_json(analysis))
            for name, records, analysis in zip(
                job["configurations"], data.records, data.analyses, strict=True
            )
        }
        write_claims(check(contents, job["absent"]), snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
