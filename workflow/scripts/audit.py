"""Check a run from its tables back to its inputs; the exit code says whether all is verified."""

from pathlib import Path

from replay.audit import VERIFIED, audit, shown, strays
from replay.dag import jobs
from replay.job import logged


def main(snakemake):
    with logged(snakemake.log[0]) as console:
        job = snakemake.params.job
        made = [path for path in job["optional"] if Path(path).exists()]
        dag = jobs(snakemake.config, job["targets"] + made)
        stages, total = audit(dag)
        lines = [line for stage in stages for line in stage.lines()]
        others = strays(Path("results") / snakemake.config["run"], dag)
        lines += [f"not made by any job: {shown(str(file))}" for file in others]
        print("\n".join([*lines, f"sum over all outputs and sidecars: {total}"]), file=console)
        if any(stage.state != VERIFIED for stage in stages):
            raise SystemExit(1)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
