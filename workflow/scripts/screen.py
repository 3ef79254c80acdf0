"""Decide which problems a cohort holds, generating trunks where it is screened by accuracy."""

from replay.devices import check_granted
from replay.job import recorded
from replay.screen import run


def main(snakemake):
    with recorded(snakemake) as (console, sidecar):
        job, data = snakemake.params.job, snakemake.input
        check_granted(job["settings"]["engine"], snakemake.resources.gpu)
        began = run(
            cohort_name=job["cohort"],
            settings=job["settings"],
            code=job["code"],
            dataset=data.dataset,
            model=data.model,
            cohort_file=snakemake.output.cohort,
            scan_folder=snakemake.output.scan,
            console=console,
        )
        sidecar.took_over(began)


if __name__ == "__main__":
    main(snakemake)  # noqa: F821
