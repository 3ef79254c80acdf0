"""Describe a finished and verified run as an RO-Crate."""

from pathlib import Path

from replay.audit import VERIFIED, audit
from replay.crate import CrateError, write_crate
from replay.dag import jobs
from replay.job import recorded
from replay.storage import read_json


def main(snakemake):
    with recorded(snakemake):
        found = jobs(snakemake.config, [snakemake.params.job["target"]])
        stages, _ = audit(found)
        if bad := [line for stage in stages if stage.state != VERIFIED for line in stage.lines()]:
            raise CrateError("\n".join(["this run is not what was made:", *bad]))
        write_crate(
            found,
            snakemake.config,
            read_json(snakemake.input.registration),
            root=Path(snakemake.output.metadata).parent,
            code=Path(snakemake.output.code),
            page=snakemake.input.page,
        )


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
