"""Problems: read from JSON Lines, which a config entry fetches from a file or from the hub."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.storage import atomic_path

NUMBER = re.compile(
    r"[-+]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
)


class DatasetError(ValueError):
    """Problems that cannot be had or read; the message says where, and what to do."""


@dataclass(frozen=True)
class Problem:
    """One problem; `index` is its line in the dataset, from 0, as in the paper (section 4)."""

    index: int
    question: str
    answer: float | str  # as the dataset's entry of ANSWERS reads it


def parse_answer(text: Any) -> float:
    """The number in an answer: a number, its text (`1,234`), or text that ends in `#### 1,234`.

    Raises DatasetError when that is no finite number.
    """
    value = _to_float(text)
    if value is None or not math.isfinite(value):
        raise DatasetError(
            f"answer {_shortened(text)} is not a finite number, nor text that ends "
            "in '#### <number>'"
        )
    return value


def _to_float(answer: Any) -> float | None:
    if isinstance(answer, str):
        number = answer.rpartition("####")[2].strip()
        # float() alone would also take "nan", "1_000" and digits of other scripts.
        return float(number.replace(",", "")) if NUMBER.fullmatch(number) else None
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return None
    try:
        return float(answer)
    except OverflowError:
        return math.inf


def parse_letter(answer: Any) -> str:
    """The letter of an option, as a capital: `B`, `b`, `(B)`, `B.`; else DatasetError."""
    found = re.fullmatch(r"\s*\(?([A-Za-z])[.):]?\s*", answer) if isinstance(answer, str) else None
    if not found:
        raise DatasetError(f"answer {_shortened(answer)} is not the letter of an option, A to Z")
    return found[1].upper()


def parse_yes_no(answer: Any) -> str:
    """`yes` or `no`, from that text in any case or from a JSON boolean; else DatasetError."""
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    label = answer.strip().lower() if isinstance(answer, str) else None
    if label not in ("yes", "no"):
        raise DatasetError(f"answer {_shortened(answer)} is not yes, no, true or false")
    return label


def parse_latex(answer: Any) -> str:
    """A formula as text, or a finite number as its text; DatasetError for anything else."""
    if isinstance(answer, str) and answer.strip():
        return answer.strip()
    if _to_float(answer) is None or not math.isfinite(_to_float(answer)):
        raise DatasetError(f"answer {_shortened(answer)} is neither a formula nor a finite number")
    return str(answer)


# What the key `answers` of a dataset may be, and how an answer of that kind is read.
ANSWERS: dict[str, Callable[[Any], float | str]] = {
    "number": parse_answer,
    "letter": parse_letter,
    "yes-no": parse_yes_no,
    "latex": parse_latex,
}


def answer_kind(entry: dict) -> str:
    """The kind of answers of config entry `datasets.<name>`, a key of ANSWERS."""
    return entry.get("answers", "number")


def load_problems(path: Path | str, answers: str) -> list[Problem]:
    """All problems of a file that `fetch` wrote, in order; `answers` is a key of ANSWERS.

    Raises DatasetError naming the file and the line of the first row that is blank, no JSON object,
    names a key twice, or lacks a question (text) or an answer of its kind.
    """
    return [
        _problem(index, where, row, "question", "answer", answers)
        for index, (where, row) in enumerate(_json_lines(Path(path)))
    ]


def fetch(entry: dict, destination: Path | str) -> None:
    """Write the problems of config entry `datasets.<name>` to `destination` as JSON Lines.

    Each line is `json.dumps({"question": ..., "answer": ...})`, whatever the source looks like, so
    one sha256 pins the problems. `entry` has source `local` (path) or `hub` (repo, revision, file,
    sha256), and optionally question_field, answer_field, answers and sha256. The file appears whole
    or not at all. Raises DatasetError when the source cannot be had or read, one of its rows is
    malformed, or the sha256 differs.
    """
    content = canonical(entry)
    if answer_kind(entry) == "latex":
        _check_formulas(content)
    with atomic_path(destination) as partial:
        partial.write_bytes(content)


def canonical(entry: dict) -> bytes:
    """The JSON Lines that `fetch` writes, checked; raises as it does."""
    fields = entry.get("question_field", "question"), entry.get("answer_field", "answer")
    lines = []
    for index, (where, row) in enumerate(_rows(_source_file(entry))):
        _problem(index, where, row, *fields, answer_kind(entry))
        question, answer = (row[field] for field in fields)
        lines.append(json.dumps({"question": question, "answer": answer}) + "\n")
    content = "".join(lines).encode()
    _check_sha256(entry, hashlib.sha256(content).hexdigest())
    return content


def _check_formulas(content: bytes) -> None:
    """Refuse answers that math-verify cannot read, before an engine starts.

    It takes some milliseconds an answer: too long for `canonical`, which every start calls.
    """
    from replay import latex

    for index, line in enumerate(content.splitlines()):
        answer = parse_latex(json.loads(line)["answer"])
        if not latex.read(answer):
            raise DatasetError(
                f"problem {index} (from 0, in file order): math-verify cannot read the answer "
                f"{_shortened(answer)}; correct it"
            )


def _source_file(entry: dict) -> Path:
    if entry["source"] == "hub":
        return _from_hub(entry)
    path = Path(entry["path"])
    if not path.is_file():
        raise DatasetError(f"{path} is not a file; correct datasets.<name>.path in the config")
    return path


def _from_hub(entry: dict) -> Path:
    from huggingface_hub import hf_hub_download

    repo, revision, file = entry["repo"], entry["revision"], entry["file"]
    try:
        return Path(hf_hub_download(repo, file, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub client lets errors of its HTTP library through
        raise DatasetError(
            f"{file} of dataset {repo} at revision {revision} cannot be downloaded ({error}); check"
            " the network, or give datasets.<name> in the config a file that you have: "
            "{source: local, path: <.jsonl, .json or .parquet file>}"
        ) from error


def _check_sha256(entry: dict, found: str) -> None:
    source = entry.get("repo") or entry["path"]
    pinned = entry.get("sha256")
    if pinned is None and entry["source"] == "hub":
        raise DatasetError(
            f"dataset {source}: no sha256 is pinned; its problems have {found}: "
            "check them, then set datasets.<name>.sha256"
        )
    if pinned not in (None, found):
        raise DatasetError(
            f"dataset {source}: its problems have sha256 {found}, not the pinned "
            f"{pinned}; correct the source or datasets.<name>.sha256"
        )


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a source file by its suffix, each with where it stands."""
    readers = {".jsonl": _json_lines, ".json": _json_array, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DatasetError(f"{path}: unknown suffix {path.suffix!r}; known: {', '.join(readers)}")
    return readers[path.suffix](path)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise DatasetError(f"{path} is empty; it needs one JSON object a line")
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            raise DatasetError(f"{where} is blank; remove it (a problem's index is its line)")
        yield where, _json(line, where)


def _json_array(path: Path) -> Iterator[tuple[str, Any]]:
    rows = _json(path.read_bytes(), str(path))
    if not isinstance(rows, list) or not rows:
        raise DatasetError(f"{path} is not an array of objects; write one, or use JSON Lines")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, element {number}", row


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is no readable Parquet file ({error}); replace it") from error
    if not rows:
        raise DatasetError(f"{path} has no rows; choose another file")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row


def _json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where}: not valid JSON ({error}); correct it") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key appears twice")
    return row


def _problem(
    index: int, where: str, row: Any, question_field: str, answer_field: str, answers: str
) -> Problem:
    if not isinstance(row, dict):
        raise DatasetError(
            f"{where}: {_shortened(row)} is not an object; it needs the fields "
            f"{question_field!r} and {answer_field!r}"
        )
    for field in (question_field, answer_field):
        if field not in row:
            raise DatasetError(
                f"{where}: no field {field!r} (there are: {', '.join(row)}); add it,"
                " or set datasets.<name>.question_field and answer_field"
            )
    question = row[question_field]
    if not isinstance(question, str) or not question.strip():
        raise DatasetError(
            f"{where}: {question_field!r} is {_shortened(question)}; "
            "it must be a text that is not empty"
        )
    try:
        answer = ANSWERS[answers](row[answer_field])
    except DatasetError as error:
        raise DatasetError(f"{where}, field {answer_field!r}: {error}; correct it") from error
    return Problem(index, question, answer)


def _shortened(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
