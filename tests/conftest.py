"""What tests share: the small real model, and where the reference material lies."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is no property: a busy machine would fail tests.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference material beside the checkout; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the reference material is not beside this checkout")
    return SHARED


@pytest.fixture(params=[r"[twocolumn]{article}\textwidth=7in", r"{article}\textwidth=5.5in"])
def typeset(request, tmp_path):
    """What pdflatex says of a document with one file of tables, in two columns and in one."""
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed")

    def log(file: Path) -> str:
        (tmp_path / "document.tex").write_text(
            rf"\documentclass{request.param}"
            r"\usepackage{booktabs}\usepackage{tabularx}\usepackage[T1]{fontenc}"
            rf"\begin{{document}}\input{{{file}}}\end{{document}}"
        )
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-2000:]
        return result.stdout

    return log


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The demo's model under resources/, fetched by the workflow: with the sidecar of its job."""
    model = "resources/models/smollm2-135m"
    lock_file = ROOT / "resources" / ".tests.lock"
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make test` has two processes that want it
        if not (ROOT / model).is_dir():
            command = [sys.executable, "-m", "snakemake", "--cores", "1", model]
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / model
