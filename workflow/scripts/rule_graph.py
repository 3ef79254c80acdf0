"""The graph of the rules behind a run, as SVG."""

from replay.dag import jobs
from replay.job import recorded
from replay.rule_graph import edges_of, svg
from replay.storage import write_text


def main(snakemake):
    with recorded(snakemake):
        found = jobs(snakemake.config, [snakemake.params.job["target"]])
        names = list(dict.fromkeys(job.rule for job in found))
        write_text(snakemake.output[0], svg(names, edges_of(found)))


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
