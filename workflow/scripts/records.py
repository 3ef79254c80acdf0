"""Join passes and grades into one record per pivot; state what ran each shard."""

from replay.job import recorded
from replay.records import run, shard_facts
from replay.storage import write_json


def main(snakemake):
    with recorded(snakemake):
        passes, output = snakemake.input.passes, snakemake.output
        run(snakemake.params.job["settings"], passes, snakemake.input.grades, output.records)
        write_json(output.shards, shard_facts(passes))


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
