"""Claims of GPUs are real locks between real processes; no GPU is needed to hold one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replay.devices import DeviceError, check_granted, claim, gpus, shortage, visible

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
CUDA = {"device": "cuda", "tensor_parallel": 2}
CPU = {"device": "cpu", "tensor_parallel": 1}
VARIABLE = "CUDA_VISIBLE_DEVICES"

# Claims, says what it got, holds it until its input ends, and says what is visible then.
HOLD = f"""
import os, sys
from replay import devices
devices.POLL_SECONDS = float(sys.argv[2])
held = devices.claim(int(sys.argv[1]))
print(os.environ["{VARIABLE}"], flush=True)
sys.stdin.read()
held.close()
print(os.environ["{VARIABLE}"], flush=True)
"""

# Claims again and again; a mark that is already there is a device held twice.
CONTEND = f"""
import os, sys
from pathlib import Path
from replay import devices
devices.POLL_SECONDS = 0.001
for turn in range(60):
    with devices.claim(1 + turn % 2):
        names = os.environ["{VARIABLE}"].split(",")
        assert len(set(names)) == 1 + turn % 2
        marks = [Path(sys.argv[1], name) for name in names]
        for mark in marks:
            mark.touch(exist_ok=False)
        for mark in marks:
            mark.unlink()
"""


@pytest.fixture
def start(tmp_path):
    """Start a program in a process that sees the devices `names`; all end with the test."""
    processes = []

    def start(program, argument, names="0,1,2", poll=0.02):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(argument), str(poll)],
            env=os.environ
            | {VARIABLE: names, "TMPDIR": str(tmp_path), "PYTHONPATH": str(SCRIPTS)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def line(process):
    return process.stdout.readline().strip()


def release(process):
    """Let a holder end its claim; what it sees afterwards."""
    process.stdin.close()
    seen = line(process)
    process.wait()
    return seen


def test_the_lowest_free_devices_are_taken_and_the_variable_comes_back(start):
    first = start(HOLD, 1)
    assert line(first) == "0"
    second = start(HOLD, 2)
    assert line(second) == "1,2"
    assert release(first) == release(second) == "0,1,2"
    assert line(start(HOLD, 3)) == "0,1,2"


def test_devices_are_locked_by_name(start):
    assert line(start(HOLD, 1, names="GPU-b,GPU-a")) == "GPU-b"
    assert line(start(HOLD, 1, names="GPU-b,GPU-a")) == "GPU-a"


def test_a_claim_waits_and_goes_on_when_devices_are_free(start):
    holder = start(HOLD, 2)
    assert line(holder) == "0,1"
    waiting = start(HOLD, 2)
    assert line(waiting) == "waiting for 2 of the GPUs 0, 1, 2 to be free"
    release(holder)
    assert line(waiting) == "0,1"


def test_a_claim_that_waits_holds_nothing(start):
    assert line(start(HOLD, 1)) == "0"
    assert line(start(HOLD, 3, poll=600)).startswith("waiting for 3")  # and sleeps from now on
    assert line(start(HOLD, 2)) == "1,2"


def test_a_killed_holder_holds_nothing(start):
    holder = start(HOLD, 3)
    assert line(holder) == "0,1,2"
    waiting = start(HOLD, 3)
    assert line(waiting).startswith("waiting")
    holder.kill()
    assert line(waiting) == "0,1,2"


def test_no_device_is_ever_held_twice(start, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    contenders = [start(CONTEND, marks) for _ in range(3)]
    for contender in contenders:
        contender.communicate(timeout=60)
        assert contender.returncode == 0


@pytest.mark.parametrize(
    ("names", "count", "says"),
    [
        ("0", 2, r"asks for 2 GPUs \(engine\.tensor_parallel\), visible are 1 .*DEVICES=0\)"),
        ("", 1, r"asks for 1 GPUs .*visible are 0 "),
    ],
)
def test_more_than_are_visible_is_refused_at_once(monkeypatch, names, count, says):
    monkeypatch.setenv(VARIABLE, names)
    with pytest.raises(DeviceError, match=says):
        claim(count)
    assert os.environ[VARIABLE] == names


def test_without_the_variable_all_devices_of_the_host_are_visible(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert visible() == ["0", "1", "2"]
    with claim(2):
        assert visible() == ["0", "1"]
    assert VARIABLE not in os.environ
    with pytest.raises(DeviceError, match="visible are 3 .*DEVICES=unset"):
        claim(4)


@pytest.mark.parametrize(
    ("listed", "names"),
    [("0, 1", ["0", "1"]), ("-1", []), ("1,-1,0", ["1"]), ("2,2", ["2"]), (" ", [])],
)
def test_the_variable_is_read_as_cuda_reads_it(monkeypatch, listed, names):
    monkeypatch.setenv(VARIABLE, listed)
    assert visible() == names


@pytest.mark.parametrize(("engine", "count"), [(CUDA, 2), (CPU, 0)])
def test_an_engine_takes_a_gpu_a_rank_and_none_on_a_cpu(engine, count):
    assert gpus(engine) == count
    check_granted(engine, count)


@pytest.mark.parametrize(
    ("engine", "granted", "says"),
    [
        (CUDA, 0, "given gpu=0, but engine.device cuda with engine.tensor_parallel 2 takes 2;"),
        (CUDA, 3, "given gpu=3, but engine.device cuda with engine.tensor_parallel 2 takes 2;"),
        (CPU, 1, "given gpu=1, but engine.device cpu with engine.tensor_parallel 1 takes 0;"),
    ],
)
def test_another_grant_than_asked_for_is_refused(engine, granted, says):
    with pytest.raises(DeviceError) as error:
        check_granted(engine, granted)
    assert says in str(error.value) and "--set-resources" in str(error.value)


@pytest.mark.parametrize(("count", "lacks"), [(0, False), (1, False), (2, False), (3, True)])
def test_a_run_is_told_of_the_gpus_that_it_lacks(monkeypatch, count, lacks):
    monkeypatch.setenv(VARIABLE, "0,1")
    said = shortage(count)
    assert bool(said) == lacks
    assert not lacks or "take 3 GPUs at once, visible here are 2" in said
