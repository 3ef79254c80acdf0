"""The page: tables, figures, what each means, settings and engine facts in one HTML file."""

from replay.job import recorded
from replay.page import gather
from replay.report import build_report
from replay.storage import write_text


def main(snakemake):
    with recorded(snakemake):
        job, data = snakemake.params.job, snakemake.input
        context = gather(
            run=job["run"],
            title=job["title"],
            rows=job["rows"],
            records=data.records,
            analyses=data.analyses,
            cohorts=data.cohorts,
            shards=data.shards,
            invariance=data.invariance,
            table=data.table,
            figures=data.figures,
            browser=data.browser,
            registration=data.registration,
            rule_graph=data.rule_graph,
            output=snakemake.output[0],
            published=job["published"],
            claims=data.claims[0] if job["published"] else None,
        )
        write_text(snakemake.output[0], build_report(context))


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
