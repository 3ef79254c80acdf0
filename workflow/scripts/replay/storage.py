"""Files: atomic writes, JSON Lines with located errors, digests, and work kept across a crash."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class StoredFileError(ValueError):
    """A file of this workflow that cannot be read as what it should be."""


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a path beside `path`; on success it replaces `path`, on failure it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON with a fixed layout; NaN and infinities are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoredFileError(f"{path}: not valid JSON ({error}); delete it and rerun") from error


def write_jsonl(path: Path | str, rows: Iterable[dict]) -> None:
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")


def read_jsonl(path: Path | str) -> Iterator[dict]:
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise StoredFileError(
                    f"{path}, line {number}: not valid JSON ({error}); delete the file and rerun"
                ) from error


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
    """Finished pieces of a long job, kept outside the declared outputs until the job is done.

    Snakemake deletes the outputs of a job that died. Pieces live in a folder named after a digest
    of everything that determines them, so a rerun finds its own pieces and never another's. A
    process that outlived its killed parent is waited for.
    """

    def __init__(self, output: Path | str, determines: Any):
        output = Path(output)
        root = output.parent / f".{output.name}.unfinished"
        self.lock = lock_folder(root, wait=True)
        self.folder = root / digest(determines)[:16]
        self.folder.mkdir(exist_ok=True)

    def path(self, name: str) -> Path:
        return self.folder / name

    def clear(self) -> None:
        """Drop these pieces, and those that earlier settings of the same job left behind."""
        shutil.rmtree(self.folder.parent)


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
