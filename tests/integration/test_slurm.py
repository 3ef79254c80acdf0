"""A study of two shards through the real Slurm plugin on a real one-node cluster."""

import re
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise

import pytest
import slurm_cluster
import tiny_run

from replay.protocol import PASSES

MAIN = {"main": tiny_run.TINY["configurations"]["main"]}
# The plugin asks after its jobs ten seconds later each time that none has ended, up to three
# minutes, which no option changes: half of the test would be waiting.
SNAKEMAKE = """
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor
Executor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, seconds: None)
main()
"""

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.engine,
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=str(slurm_cluster.why_not())),
]


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


def test_a_killed_job_resumes_and_records_are_those_of_a_local_run(finished, cluster, tmp_path):
    """Two shards on the cluster, the first of which is killed, against one on this machine.

    What the local run screened is taken over; the other cohort is screened on the cluster.
    """
    output = tmp_path / "snakemake.out"
    (screened,) = (finished.results / "screen").glob("screened_*")
    _, options = finished.copied("slurm", f"screen/{screened.name}")
    command = [
        sys.executable, "-c", SNAKEMAKE, "--workflow-profile", "slurm", "all", *options,
        "--configfile", str(finished.configure(run="slurm", shards=2, configurations=MAIN)),
        "--slurm-status-command", "squeue",  # there is no accounting database
        "--latency-wait", "5",
    ]  # fmt: skip
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=finished.folder, env=cluster.environment, stdout=file, stderr=file
        )
        try:
            kept = kill_passes_after_a_problem(finished, cluster, process, output)
            process.wait(timeout=600)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, output.read_text() + finished.logs() + cluster.logs()

    log = finished.folder / "results/slurm/logs/passes/main/0-of-2.log"
    assert f"{kept} finished problems are kept" in log.read_text()
    finished.assert_same("slurm", "records/main.json", "analysis/main.json")
    assert (finished.folder / "results/slurm/report/index.html").is_file()
    for name in PASSES:
        local = lines(finished, f"tiny/passes/main/*/{name}.jsonl")
        assert lines(finished, f"slurm/passes/main/*/{name}.jsonl") == local != [], name


def lines(finished, pattern: str) -> list[bytes]:
    """Lines of files of any shard, sorted."""
    files = (finished.folder / "results").glob(pattern)
    return sorted(line for file in files for line in file.read_bytes().splitlines())


def kill_passes_after_a_problem(finished, cluster, process, output) -> int:
    """Cancel the first shard's passes once a problem is finished; how many problems it kept."""
    unfinished = finished.folder / "results/slurm/passes/main/.0-of-2.unfinished"
    wait_for(lambda: list(unfinished.glob("*/*.json")), process, "a finished problem", output)
    (job,) = (
        job for job, (rule, state) in cluster.jobs().items()
        if rule == "passes" and state == "RUNNING"
    )  # fmt: skip
    cluster.run("scancel", "--signal=KILL", "--full", job)
    wait_for(lambda: cluster.jobs()[job][1] in ("FAILED", "CANCELLED"), process, "end", output)
    return len(list(unfinished.glob("*/*.json")))


def test_every_engine_ran_as_a_job_of_its_own_and_alone(cluster):
    """A job's CPUs are the engine's threads: on a node of as many, the next engine waits."""
    completed = Counter(rule for rule, state in cluster.jobs().values() if state == "COMPLETED")
    # Two cohorts, of which one was screened before, each cut into two shards of trunks.
    assert completed == {
        "screen": 1, "trunks": 4, "passes": 2, "grade": 1, "records": 1, "analyze": 1, "browser": 1
    }  # fmt: skip
    spans = []
    for job, (rule, _state) in cluster.jobs().items():
        if rule in ("screen", "trunks", "passes"):
            shown = cluster.run("scontrol", "show", "job", job)
            assert "CPUs/Task=2" in shown and "mem=6.50G" in shown, shown
            spans.append(re.search(r"StartTime=(\S+) EndTime=(\S+)", shown).groups())
    assert len(spans) == 8, "the passes of one shard ran twice"
    assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))
