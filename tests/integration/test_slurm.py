"""A study of two shards through the real Slurm plugin on a real one-node cluster."""

import re
import subprocess
import sys
import time

import pytest
import slurm_cluster
from test_workflow import TINY, Checkout

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.engine,
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=str(slurm_cluster.why_not())),
]
# Three problems: the first shard has two, so that its passes can be killed between them.
STUDY = {
    "shards": 2,
    "cohorts": {"primary": {"dataset": "word-problems", "start": 0, "n": 3}},
    "trunks": {"rollouts": 3, "max_tokens": 64},
    "continuations": {"k": 2, "max_tokens": 32, "probe_tokens": 8},
    "configurations": {"main": TINY["configurations"]["main"] | {"cohorts": ["primary"]}},
}


@pytest.fixture(scope="module")
def checkout(root, checkpoint, tmp_path_factory) -> Checkout:
    checkout = Checkout(root, tmp_path_factory.mktemp("checkout"), checkpoint)
    checkout.snakemake("--touch", "resources/models/smollm2-135m")
    return checkout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


def wait_for(condition, process: subprocess.Popen, what: str, output):
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert process.poll() is None, f"ended before {what}:\n{output.read_text()}"
        assert time.monotonic() < deadline, f"no {what} in time:\n{output.read_text()}"
        time.sleep(0.05)
    return found


def test_a_killed_job_resumes_and_records_are_those_of_a_local_run(checkout, cluster, tmp_path):
    local = checkout.configure(run="local", **STUDY)
    checkout.snakemake("main", config=local)

    output = tmp_path / "snakemake.out"
    command = [
        sys.executable, "-m", "snakemake", "--workflow-profile", "slurm", "main",
        "--configfile", str(checkout.configure(run="slurm", **STUDY)),
        "--slurm-status-command", "squeue",  # there is no accounting database
        "--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "5",
    ]  # fmt: skip
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=checkout.folder, env=cluster.environment, stdout=file, stderr=file
        )
        try:
            kept = kill_passes_after_a_problem(checkout, cluster, process, output)
            process.wait(timeout=600)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, output.read_text() + checkout.logs() + cluster.logs()

    log = checkout.folder / "results/slurm/logs/passes/main/0-of-2.log"
    assert f"{kept} finished problems are kept" in log.read_text()
    for pattern in ("records/main.json", "analysis/main.json", "passes/main/*/*.jsonl"):
        files = sorted((checkout.folder / "results/local").glob(pattern))
        assert files
        for file in files:
            twin = checkout.folder / "results/slurm" / file.relative_to(
                checkout.folder / "results/local"
            )  # fmt: skip
            assert twin.read_bytes() == file.read_bytes(), f"{file.name} differs"


def kill_passes_after_a_problem(checkout, cluster, process, output) -> int:
    """Cancel the first shard's passes once a problem is finished; how many problems it kept."""
    unfinished = checkout.folder / "results/slurm/passes/main/.0-of-2.unfinished"
    wait_for(lambda: list(unfinished.glob("*/*.json")), process, "a finished problem", output)
    (job,) = (
        job for job, (rule, state) in cluster.jobs().items()
        if rule == "passes" and state == "RUNNING"
    )  # fmt: skip
    cluster.run("scancel", "--signal=KILL", "--full", job)
    wait_for(lambda: cluster.jobs()[job][1] in ("FAILED", "CANCELLED"), process, "end", output)
    return len(list(unfinished.glob("*/*.json")))


def test_every_engine_ran_as_a_job_of_its_own_and_alone(checkout, cluster):
    """A job's CPUs are the engine's threads: on a node of as many, the next engine waits."""
    states = list(cluster.jobs().values())
    assert sorted(rule for rule, state in states if state == "COMPLETED") == sorted(
        ["analyze", "grade", "passes", "passes", "records", "screen", "trunks", "trunks"]
    )
    spans = []
    for job, (rule, _state) in cluster.jobs().items():
        if rule in ("trunks", "passes"):
            shown = cluster.run("scontrol", "show", "job", job)
            assert "CPUs/Task=2" in shown and "mem=6.50G" in shown, shown
            spans.append(re.search(r"StartTime=(\S+) EndTime=(\S+)", shown).groups())
    spans.sort()
    assert len(spans) == 5, "two shards of trunks, two of passes, and one of them twice"
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
