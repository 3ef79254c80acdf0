"""A script's log holds everything, children included; the console gets one clear line."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"


def run(tmp_path, body):
    program = f"""
import os, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from replay.job import logged, progress
with logged("logs/job.log") as console:
    {body}
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    return result, (tmp_path / "logs" / "job.log").read_text()


def test_children_write_to_the_log_too(tmp_path):
    result, log = run(tmp_path, "print('mine'); os.system('echo child; echo error >&2')")
    assert result.returncode == 0
    assert result.stdout == result.stderr == ""
    assert sorted(log.split()) == ["child", "error", "mine"]


def test_a_failure_is_one_line_on_the_console_and_a_traceback_in_the_log(tmp_path):
    result, log = run(tmp_path, "raise ValueError('engine.threads is too large')")
    assert result.returncode == 1
    assert result.stderr == "error: engine.threads is too large\n  (details: logs/job.log)\n"
    assert "Traceback" in log and "ValueError: engine.threads is too large" in log


def test_progress_goes_to_the_console(tmp_path):
    body = "bar = progress(console, 'passes main', 2, 'request'); bar.update(2); bar.close()"
    result, log = run(tmp_path, body)
    assert "passes main: 100%" in result.stderr and "2/2" in result.stderr
    assert log == ""
