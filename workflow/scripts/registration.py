"""What a run may say of its registration, and what the decision rule says of it."""

from replay.job import recorded
from replay.registration import assess, engine_sidecars
from replay.storage import write_json


def main(snakemake):
    with recorded(snakemake) as (_, sidecar):
        job, data = snakemake.params.job, snakemake.input
        result = assess(
            job["registration"],
            data.lock[0] if data.lock else None,
            job["jobs"],
            data.records,
            data.analyses,
            job["verdict_code"],
        )
        sidecar.facts["engine_sidecars"] = engine_sidecars(job["jobs"])
        write_json(snakemake.output[0], result)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
