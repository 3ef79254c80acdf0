"""The finished run that the tests of the workflow share."""

import pytest
from tiny_run import Checkout


@pytest.fixture(scope="session")
def finished(root, checkpoint, tmp_path_factory) -> Checkout:
    """A checkout in which `snakemake --cores 8 all` has run the study TINY; made once.

    Under `finished.results` are its cohorts (one screened), trunks with their KV state, passes,
    grades, records, analyses, self-check, tables, figures and page; in the checkout's
    `.snakemake/metadata` the times of its jobs. Two configurations: `main` (stock numerics, two
    problems and a screened one) and `batch-invariant` (two problems).

    For all tests: leave `results/tiny` as it is. A test that runs something of its own takes
    `finished.copied("a-name", "screen", "trunks")`, which starts no engine again for what is
    copied, or `finished.configure(run="a-name", ...)`, which begins with nothing.
    """
    checkout = Checkout(root, tmp_path_factory.mktemp("checkout"), checkpoint)
    # The copied model has no metadata of the job that made it; it is declared current.
    checkout.snakemake("--touch", "resources/models/smollm2-135m")
    checkout.vouch_for("resources/models/smollm2-135m")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY"):
            patch.setenv(name, "planted-secret")
        checkout.snakemake("all", "--cores", "8")
    return checkout
