"""The workflow on a folder that it cannot have for itself, or cannot write; no engine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replay.storage import lock_folder

ROOT = Path(__file__).parents[2]
TARGET = "resources/datasets/word-problems.jsonl"


@pytest.fixture
def folder(tmp_path):
    """A working folder of its own; the workflow is used where it lies."""
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    (tmp_path / "results").mkdir()
    return tmp_path


def snakemake(folder):
    result = subprocess.run(
        [
            sys.executable, "-m", "snakemake", "--cores", "1", TARGET,
            "--snakefile", str(ROOT / "Snakefile"),
            "--workflow-profile", str(ROOT / "profiles" / "default"),
            "--configfile", str(ROOT / "config" / "config.yaml"),
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr


def test_a_second_workflow_process_on_a_results_folder_is_refused(folder):
    """Also where it reaches the folder by another path."""
    other = folder / "other"
    other.mkdir()
    for name in ("workflow", "results"):
        (other / name).symlink_to(folder / name)
    held = lock_folder(folder / "results")
    code, output = snakemake(other)
    assert code == 1
    assert "another workflow process is at work in this folder; wait for it" in output
    assert not (other / TARGET).exists()
    held.close()  # as by any end of the process that held it
    code, output = snakemake(other)
    assert code == 0 and (other / TARGET).exists(), output


def test_a_results_folder_that_cannot_be_written_is_one_clear_error(folder):
    results = folder / "results"
    if os.geteuid():
        results.chmod(0o500)
    else:  # root may write in any folder, not on a read-only mount
        mount = shutil.which("mount") or pytest.skip("no mount on this machine")
        if subprocess.run([mount, "--bind", results, results], capture_output=True).returncode:
            pytest.skip("mounting takes rights that this user has not")
        subprocess.run([mount, "-o", "remount,ro,bind", results], check=True)
    try:
        code, output = snakemake(folder)
    finally:
        if os.geteuid():
            results.chmod(0o700)
        else:
            subprocess.run(["umount", results], check=True)
    assert code == 1
    assert "results: cannot be written (" in output
    assert "make room or correct its permissions" in output
    assert "Traceback" not in output and not (folder / TARGET).exists()
