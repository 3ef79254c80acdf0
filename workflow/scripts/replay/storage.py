"""Files: atomic writes, JSON Lines with located errors, digests, and work kept across a crash."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

SUMS = "SHA256SUMS"  # of a published folder, in the format of `sha256sum`
KV_SUFFIX = ".safetensors"  # of KV state, which holds a sha256 a block


class StoredFileError(ValueError):
    """A file of this workflow that cannot be written, or is not what it should be."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def not_written(path: Path | str, error: Exception) -> str:
    """What a user reads when the disk is full or the folder read-only."""
    return (
        f"{path}: cannot be written ({error}); make room or correct the permissions, then run the "
        "same command: finished problems are kept"
    )


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a path beside `path`; on success it replaces `path`, on failure it is removed.

    A power cut leaves the old file or the new one. Raises StoredFileError where the operating
    system refuses.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _to_disk(partial)
        os.replace(partial, path)
        _to_disk(path.parent)
    except OSError as error:
        raise StoredFileError(not_written(path, error)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path | str, text: str) -> None:
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON with a fixed layout; NaN and infinities are refused (StoredFileError)."""
    write_text(path, _json(path, value, indent=1) + "\n")


def _json(where: Path | str, value: Any, **layout: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError as error:
        raise StoredFileError(f"{where}: NaN or an infinity is no result ({error})") from error


def read_json(path: Path | str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise StoredFileError(f"{path}: not valid JSON ({error}); delete it and rerun") from error


def write_jsonl(path: Path | str, rows: Iterable[dict]) -> None:
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows, start=1):
            file.write(_json(f"{path}, line {number}", row, separators=(",", ":")) + "\n")


def read_jsonl(path: Path | str) -> Iterator[dict]:
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line, parse_constant=_refused)
            except ValueError as error:
                raise StoredFileError(
                    f"{path}, line {number}: not valid JSON ({error}); delete the file and rerun"
                ) from error


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no result")


def sha256_file(path: Path | str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """sha256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def lock_folder(folder: Path | str, wait: bool = False) -> IO[str]:
    """Hold the folder's lock as long as the returned file is open and this process lives.

    Raises BlockingIOError when another process holds it and `wait` is false.
    """
    path = Path(folder) / ".lock"
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            file.close()
            raise
        file.close()  # its holder removed the folder while we waited: lock the new one


def distinct(values: Iterable[Any]) -> list[Any]:
    """The different JSON values, in first-seen order."""
    return list({digest(value): value for value in values}.values())


class Workspace:
    """Finished pieces of a long job, kept outside the declared outputs until the run succeeded.

    Snakemake deletes the outputs of a job that died, also of one that died after its last line.
    Pieces live in a folder named after a digest of everything that determines them, so a rerun
    finds its own pieces and never another's. A process that outlived its killed parent is waited
    for. `clear_workspace` removes the folder.

    A piece holds when the attempt that made it began; `began` is the earliest of those loaded.
    """

    def __init__(self, output: Path | str, determines: Any):
        root = _workspace(output)
        try:
            self.lock = lock_folder(root)
        except BlockingIOError:
            print(f"{root}: another process is at work on this, its end is awaited", flush=True)
            self.lock = lock_folder(root, wait=True)
        self.folder = root / digest(determines)[:16]
        self.folder.mkdir(exist_ok=True)
        self.attempt = self.began = now()

    def path(self, name: str) -> Path:
        return self.folder / name

    def save(self, name: str, value: Any) -> None:
        """Keep a finished piece, with its age and a digest over both."""
        piece = {"began": self.attempt, "value": value}
        write_json(self.path(name), piece | {"sha256": digest(piece)})

    def load(self, name: str) -> Any:
        """A kept piece; StoredFileError when it is not what was saved."""
        piece = read_json(self.path(name))
        if not _intact(piece):
            raise StoredFileError(
                f"{self.path(name)}: damaged, its content is not what was saved; delete it and "
                "rerun: the other finished problems are kept"
            )
        self.began = min(self.began, piece["began"])
        return piece["value"]

    def has(self, name: str) -> bool:
        """Whether a piece is kept; StoredFileError when it is damaged."""
        return self.path(name).exists() and self.load(name) is not None


def _intact(piece: Any) -> bool:
    if not isinstance(piece, dict) or piece.keys() != {"began", "value", "sha256"}:
        return False
    return digest({"began": piece["began"], "value": piece["value"]}) == piece["sha256"]


def _workspace(output: Path | str) -> Path:
    output = Path(output)
    return output.parent / f".{output.name}.unfinished"


def clear_workspace(output: Path | str) -> None:
    """Drop the pieces of a job whose output is recorded as done, those of older settings too."""
    if _workspace(output).exists():
        shutil.rmtree(_workspace(output), ignore_errors=True)


def link(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with atomic_path(target) as partial:
            shutil.copyfile(source, partial)


def publish_folder(source: Path, destination: Path | str) -> None:
    """Move a complete folder to its final place, replacing what is there."""
    destination = Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    if destination.exists():
        shutil.rmtree(destination)
    os.replace(source, destination)
    _to_disk(destination.parent)


def seal_folder(
    folder: Path | str, made_from: Iterable[Path | str] = (), final: Path | str | None = None
) -> None:
    """Write the sums of a folder's files and of the sealed folders that it was made from.

    These are named as seen from `final`, where the folder will be published.
    """
    folder = Path(folder)
    sums = {name: folder / name for name in _sealed_names(folder)}
    for origin in made_from:
        sealed = Path(origin) / SUMS
        sums[os.path.relpath(sealed, final or folder)] = sealed
    lines = (f"{sha256_file(file)}  {name}\n" for name, file in sums.items())
    write_text(folder / SUMS, "".join(lines))


def _sealed_names(folder: Path) -> list[str]:
    """Not KV state, nor what Snakemake leaves in a folder."""
    return sorted(
        file.name
        for file in folder.iterdir()
        if file.is_file()
        and not file.name.startswith(".")
        and file.suffix != KV_SUFFIX
        and file.name != SUMS
    )


def check_folder(folder: Path | str, made_from: Iterable[Path | str] | None = None) -> None:
    """Every file of a sealed folder is what was written; what it was made from is in `made_from`.

    Raises StoredFileError naming the file. KV state is checked when it is restored.
    """
    folder = Path(folder)
    remedy = f"delete {folder} and rerun"
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        sums = {name: sha256 for sha256, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise StoredFileError(f"{folder / SUMS}: not readable ({error}); {remedy}") from error
    origins = {name for name in sums if name.startswith("..")}
    for name in {*_sealed_names(folder), *sums} - origins:
        if _sum(folder / name) != sums.get(name):
            raise StoredFileError(f"{folder / name}: is not what was written; {remedy}")
    if made_from is None:
        return
    known = {os.path.relpath(Path(origin) / SUMS, folder) for origin in made_from}
    if not origins or not all(n in known and _sum(folder / n) == sums[n] for n in origins):
        raise StoredFileError(f"{folder}: was made from other files than are there; {remedy}")


def _sum(file: Path) -> str | None:
    return sha256_file(file) if file.exists() else None
