"""The audit: every file of a run against the sidecars, from the tables back to the inputs.

A job is verified when its outputs are what it wrote, when its inputs were what their jobs wrote,
and when its parameters and code are those that the workflow would take now. Each job answers for
its own link, so a file changed by hand is found where it was changed and nowhere else.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.dag import Job
from replay.provenance import Hashes, hashes, read_sidecar
from replay.storage import KV_SUFFIX, StoredFileError, digest

MISSING, CHANGED, STALE, VERIFIED = "missing", "changed by hand", "stale", "verified"
MAX_HEADER = 100_000_000  # bytes, as the format of safetensors limits it
STATES = (MISSING, CHANGED, STALE, VERIFIED)  # the first that holds is that of the stage


@dataclass(frozen=True)
class Finding:
    """What is wrong, and where."""

    state: str
    what: str


@dataclass(frozen=True)
class Stage:
    """All jobs of one rule."""

    name: str
    jobs: int
    findings: list[Finding]

    @property
    def state(self) -> str:
        states = {finding.state for finding in self.findings}
        return next((state for state in STATES if state in states), VERIFIED)

    def lines(self) -> list[str]:
        head = f"{self.name:<18}{self.jobs:>4} job{'s' if self.jobs > 1 else ' '}  {self.state}"
        return [head, *(f"    {finding.state}: {shown(finding.what)}" for finding in self.findings)]


def audit(jobs: list[Job]) -> tuple[list[Stage], str]:
    """The stages, inputs first, and one sum over all outputs and sidecars as they are now."""
    sidecars = {job: _sidecar(job) for job in jobs}
    wrote = {
        path: (job, recorded)
        for job, sidecar in sidecars.items()
        if sidecar
        for path, recorded in sidecar["outputs"].items()
    }
    found: dict[str, list[Finding]] = {}
    present: dict[str, Hashes | None] = {}
    for job, sidecar in sidecars.items():
        now = {path: hashes(path) for path in job.outputs}
        present |= now | {str(job.sidecar): hashes(job.sidecar)}
        found.setdefault(job.rule, []).extend(_findings(job, sidecar, now, wrote))
    counts = {rule: sum(job.rule == rule for job in jobs) for rule in found}
    return [Stage(rule, counts[rule], found[rule]) for rule in found], digest(present)


def shown(text: str) -> str:
    """As it is, or escaped where a file's name could draw a line of its own."""
    return text if text.isprintable() else repr(text)


def strays(folder: Path, jobs: list[Job]) -> list[Path]:
    """Files of a run that no job made, and from which none makes anything: hidden ones, too.

    Logs, benchmarks and unfinished work are left out. What lies in a job's own folder is found by
    `audit`, unless it is hidden.
    """
    outputs = {Path(path) for job in jobs for path in job.outputs}
    made = outputs | {job.sidecar for job in jobs}
    found = (f for f in sorted(folder.rglob("*")) if f.is_symlink() or not f.is_dir())
    return [
        file
        for file in found
        if file not in made
        and not _is_passing(file.relative_to(folder))
        and (_is_hidden(file.relative_to(folder)) or outputs.isdisjoint(file.parents))
    ]


def _is_passing(file: Path) -> bool:
    return (
        file.parts[0] in ("logs", "benchmarks")
        or file.name == ".snakemake_timestamp"
        or any(part.startswith(".") and part.endswith(".unfinished") for part in file.parts)
    )


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _sidecar(job: Job) -> dict | None:
    try:
        sidecar = read_sidecar(job.sidecar)
        return sidecar if sidecar["rule"] == job.rule else None
    except (OSError, StoredFileError):
        return None


def _findings(
    job: Job, sidecar: dict | None, now: dict[str, Hashes | None], wrote: dict
) -> Iterator[Finding]:
    for path, found in now.items():
        if found is None:
            yield Finding(MISSING, path)
    if sidecar is None:
        yield Finding(MISSING, f"{job.sidecar}: no sidecar says what made {', '.join(job.outputs)}")
        return
    for path, found in now.items():
        if found is not None:
            yield from _output_findings(path, sidecar["outputs"].get(path), found)
    yield from _input_findings(job, sidecar["inputs"], wrote)
    for path, was in sidecar.get("engine_sidecars", {}).items():
        if hashes(path) != was["sha256"]:
            yield Finding(STALE, f"{job.outputs[0]} was made from another {path} than there is")
    for change in differences(sidecar["params"], job.params):
        yield Finding(STALE, f"{', '.join(job.outputs[:1])}: {change}")


def _output_findings(path: str, recorded: Hashes | None, found: Hashes) -> Iterator[Finding]:
    was, is_ = _by_file(path, recorded), _by_file(path, found)
    for file in sorted(was.keys() | is_.keys()):
        if file not in is_:
            yield Finding(MISSING, file)
        elif file not in was:
            yield Finding(CHANGED, f"{file}: added")
        elif was[file] != is_[file]:
            yield Finding(CHANGED, file + where_changed(file))


def _by_file(path: str, found: Hashes | None) -> dict[str, str]:
    if isinstance(found, dict):
        return {f"{path}/{name}": value for name, value in found.items()}
    return {path: found} if found else {}


def _input_findings(job: Job, inputs: dict[str, Hashes], wrote: dict) -> Iterator[Finding]:
    made = job.outputs[0]
    for path in sorted(set(job.inputs) ^ set(inputs)):
        verb = "now takes" if path in job.inputs else "was made from, and no longer takes,"
        yield Finding(STALE, f"{made} {verb} {path}")
    for path in sorted(set(job.inputs) & set(inputs)):
        _, written = wrote.get(path, (None, None))
        if written is None:  # made by no job that can be asked: the file itself is
            written = hashes(path)
        if written is None:
            yield Finding(MISSING, f"{path}, from which {made} was made")
        elif written != inputs[path]:
            yield Finding(STALE, f"{made} was made from another {path} than is recorded for it")


def differences(was: Any, now: Any, key: str = "") -> list[str]:
    """Parameters that are not what they were, by dotted name."""
    if isinstance(was, dict) and isinstance(now, dict):
        changes = (
            differences(was.get(name), now.get(name), f"{key}.{name}" if key else name)
            for name in dict.fromkeys([*was, *now])
        )
        return [change for of_name in changes for change in of_name]
    if was == now:
        return []
    if key == "code":
        return ["the code that made it has changed since"]
    return [f"{key} was {_short(was)}, is {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def where_changed(file: str) -> str:
    """For a KV state: which of its blocks are not what the file itself says of them."""
    if not file.endswith(KV_SUFFIX) or file.startswith("resources/"):  # there are weights
        return ""
    try:
        bad, blocks = damaged_blocks(Path(file))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ": its header is not one of a KV state"
    if not bad:
        return f": its header; all {blocks} blocks are as it says"
    shown = ", ".join(map(str, bad[:5])) + (", ..." if bad[5:] else "")
    return f": block {shown} of {blocks}" + (f" ({len(bad)} in all)" if bad[1:] else "")


def damaged_blocks(path: Path) -> tuple[list[int], int]:
    """Numbers of the blocks whose sha256 is not the one in the file's header, and how many there
    are. Read block by block, without the libraries that would map the whole file.

    Raises ValueError, LookupError, TypeError, AttributeError or RecursionError where the header
    cannot be read or is not that of such a file.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        data = path.stat().st_size - 8 - size
        if size > MAX_HEADER or data < 0:
            raise ValueError("the header is too long")
        header = json.loads(file.read(size))
        expected = json.loads(header["__metadata__"]["sha256"])
        layers = [header[f"layer.{i}"]["data_offsets"] for i in range(len(header) - 1)]
        if not all(0 <= begin <= end <= data for begin, end in layers):
            raise ValueError("a layer is outside the file")
        bad = []
        for block, sha256 in enumerate(expected):
            sha = hashlib.sha256()
            for begin, end in layers:
                length = (end - begin) // len(expected)
                file.seek(8 + size + begin + block * length)
                sha.update(file.read(length))
            if sha.hexdigest() != sha256:
                bad.append(block)
    return bad, len(expected)
