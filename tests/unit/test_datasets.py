"""Problems are read exactly or refused, and a fetched dataset has one form and one sha256."""

import hashlib
import json
from pathlib import Path

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.datasets import DatasetError, Problem, fetch, load_problems, parse_answer

GSM8K_SHA256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"
ROWS = [
    {"question": "What is 1,200 + 34?", "answer": "Add them.\n#### 1,234"},
    {"question": "What is the price in € of 3 × ½?", "answer": 1.5},
]
CANONICAL = "".join(json.dumps(row) + "\n" for row in ROWS)
HUB = {"source": "hub", "repo": "someone/sums", "revision": "0" * 40, "file": "test.parquet"}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_parquet(path: Path, rows: list[dict]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", 18), ("2 + 3 = <<2+3=5>>5\n#### 5", 5), ("#### 1\nno: #### 2", 2),
        ("#### 1,234,567", 1234567), ("#### -1,000.5", -1000.5), (" 7 ", 7), ("+7.", 7),
        (".5", 0.5), ("1e3", 1000), (7, 7), (-0.25, -0.25),
    ],
)  # fmt: skip
def test_an_answer_is_a_number_or_ends_in_one(text, number):
    assert parse_answer(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "####", "#### ", "#### eighteen", "#### 1 or 2", "12,34", "1,2345", "1_000", "٣", "e5",
     "+", ".", "nan", "inf", "1e999", "$5", float("nan"), float("-inf"), 10**400, None, True, [1]],
)  # fmt: skip
def test_what_is_no_finite_number_is_refused(text):
    with pytest.raises(DatasetError, match="not a finite number"):
        parse_answer(text)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300))
def test_every_finite_number_is_read_back_from_its_text(number):
    assert parse_answer(str(number)) == parse_answer(number) == float(number)


@given(st.integers())
def test_thousands_separators_do_not_change_a_number(number):
    assert parse_answer(f"#### {number:,}") == float(number)


def test_the_index_is_the_line(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(CANONICAL)
    assert load_problems(path, "number") == [
        Problem(0, ROWS[0]["question"], 1234.0),
        Problem(1, ROWS[1]["question"], 1.5),
    ]


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "problems.jsonl"
    question = "one\u2028two\u0085three"
    path.write_text(json.dumps({"question": question, "answer": 1}, ensure_ascii=False), "utf-8")
    assert load_problems(path, "number") == [Problem(0, question, 1.0)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "is blank"),
        (b" \t", "is blank"),
        (b'{"question": "q", "answer": 1', "not valid JSON"),
        (b'{"question": "\xff", "answer": 1}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"question": "q", "answer": 1, "answer": 2}', "a key appears twice"),
        (b'["q", 1]', "is not an object"),
        (b'{"question": "q"}', "no field 'answer'.*there are: question"),
        (b'{"answer": 1}', "no field 'question'"),
        (b'{"question": " ", "answer": 1}', "must be a text that is not empty"),
        (b'{"question": 5, "answer": 1}', "must be a text that is not empty"),
        (b'{"question": "q", "answer": "many"}', "field 'answer': answer 'many' is not a finite"),
        (b'{"question": "q", "answer": NaN}', "is not a finite number"),
        (b'{"question": "q", "answer": 1e999}', "is not a finite number"),
    ],
)
def test_a_malformed_row_is_named_with_its_line(tmp_path, line, complaint):
    path = tmp_path / "problems.jsonl"
    good = b'{"question": "q", "answer": 1}\n'
    path.write_bytes(good + line + b"\n" + good)
    with pytest.raises(DatasetError, match=rf"problems\.jsonl, line 2.*{complaint}"):
        load_problems(path, "number")


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "problems.jsonl"
    for content in ("", "\n"):
        path.write_text(content)
        with pytest.raises(DatasetError, match="is empty"):
            load_problems(path, "number")


def sources(folder: Path, rows: list[dict]) -> list[Path]:
    """The same rows in every form that a local source may have."""
    lines = folder / "rows.jsonl"
    lines.write_bytes(b"\r\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows))
    array = folder / "rows.json"
    array.write_text(json.dumps(rows, indent=2))
    return [lines, array, write_parquet(folder / "rows.parquet", rows)]


def test_every_local_form_gives_the_same_lines(tmp_path):
    rows = [{"id": n, "a": f"#### {n}", "q": f"½ of {2 * n}?"} for n in range(3)]
    expected = "".join(json.dumps({"question": r["q"], "answer": r["a"]}) + "\n" for r in rows)
    for path in sources(tmp_path, rows):
        destination = tmp_path / "out" / f"{path.suffix}.jsonl"
        entry = {
            "source": "local",
            "path": str(path),
            "question_field": "q",
            "answer_field": "a",
            "sha256": sha256(expected),
        }
        fetch(entry, destination)
        assert destination.read_text() == expected
        assert [p.answer for p in load_problems(destination, "number")] == [0, 1, 2]


def test_a_bad_row_is_named_where_it_stands_and_nothing_is_published(tmp_path):
    rows = [{"question": "q", "answer": "1"}, {"question": "q", "answer": "x"}]
    places = ("line 2", "element 2", "row 2")
    for path, place in zip(sources(tmp_path, rows), places, strict=True):
        with pytest.raises(DatasetError, match=f"rows{path.suffix}, {place}, field 'answer'"):
            fetch({"source": "local", "path": str(path)}, tmp_path / "out" / "problems.jsonl")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("rows.csv", "question,answer", "unknown suffix '.csv'"),
        ("rows.json", "{}", "is not an array of objects"),
        ("rows.json", "[]", "is not an array of objects"),
        ("rows.json", "[", "not valid JSON"),
        ("rows.parquet", "PAR1", "no readable Parquet file"),
        (None, "", "is not a file; correct datasets.<name>.path"),
    ],
)
def test_an_unreadable_source_is_refused(tmp_path, name, content, complaint):
    path = tmp_path / (name or "absent.jsonl")
    if name:
        path.write_text(content)
    with pytest.raises(DatasetError, match=complaint):
        fetch({"source": "local", "path": str(path)}, tmp_path / "problems.jsonl")


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": [], "answer": []}), path)
    with pytest.raises(DatasetError, match="has no rows"):
        fetch({"source": "local", "path": str(path)}, tmp_path / "problems.jsonl")


def test_another_sha256_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(CANONICAL)
    destination = tmp_path / "problems.jsonl"
    destination.write_text("old")
    with pytest.raises(DatasetError, match=f"sha256 {sha256(CANONICAL)}, not the pinned 000"):
        fetch({"source": "local", "path": str(path), "sha256": "0" * 64}, destination)
    assert destination.read_text() == "old"
    assert {p.name for p in tmp_path.iterdir()} == {"rows.jsonl", "problems.jsonl"}


def test_a_hub_file_is_asked_for_at_its_revision(tmp_path, monkeypatch):
    rows = [{"question": row["question"], "answer": str(row["answer"])} for row in ROWS]
    expected = "".join(json.dumps(row) + "\n" for row in rows)
    asked = []

    def download(*args, **kwargs):
        asked.append((args, kwargs))
        return str(write_parquet(tmp_path / "cached.parquet", rows))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    fetch(HUB | {"sha256": sha256(expected)}, tmp_path / "problems.jsonl")
    assert (tmp_path / "problems.jsonl").read_text() == expected
    assert asked == [(("someone/sums", "test.parquet"),
                      {"repo_type": "dataset", "revision": "0" * 40})]  # fmt: skip
    with pytest.raises(DatasetError, match=f"no sha256 is pinned.*{sha256(expected)}"):
        fetch(HUB, tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_answers_of_another_kind_are_kept_as_they_are_and_read_by_kind(tmp_path):
    rows = [{"question": "Is 2 even?", "answer": True}, {"question": "Is 3?", "answer": "No"}]
    (source,) = [path for path in sources(tmp_path, rows[1:]) if path.suffix == ".parquet"]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path, expected in ((lines, rows), (source, rows[1:])):
        destination = tmp_path / "out.jsonl"
        fetch({"source": "local", "path": str(path), "answers": "yes-no"}, destination)
        assert destination.read_text() == "".join(json.dumps(row) + "\n" for row in expected)
    assert [p.answer for p in load_problems(lines, "yes-no")] == ["yes", "no"]
    with pytest.raises(DatasetError, match="lines.jsonl, line 1.*answer True is not a finite"):
        fetch({"source": "local", "path": str(lines)}, tmp_path / "out.jsonl")


def test_a_formula_that_cannot_be_read_is_refused_before_any_engine_starts(tmp_path):
    path = tmp_path / "formulas.jsonl"
    entry = {"source": "local", "path": str(path), "answers": "latex"}
    good = [{"question": "q", "answer": answer} for answer in (r"\frac{1}{2}", 3, "x^2")]
    path.write_text("".join(json.dumps(row) + "\n" for row in good))
    fetch(entry, tmp_path / "out.jsonl")
    path.write_text(path.read_text() + json.dumps({"question": "q", "answer": r"\frac{1}{"}))
    with pytest.raises(DatasetError, match="problem 3 .*math-verify cannot read"):
        fetch(entry, tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_a_failed_download_says_how_to_use_a_file(tmp_path, monkeypatch):
    def download(*args, **kwargs):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(DatasetError, match=r"no route.*datasets\.<name>.*source: local"):
        fetch(HUB | {"sha256": "0" * 64}, tmp_path / "problems.jsonl")


def test_gsm8k_keeps_its_sha256_through_parquet(tmp_path, shared):
    original = shared / "gsm8k" / "test.jsonl"
    rows = [json.loads(line) for line in original.read_text("utf-8").splitlines()]
    parquet = write_parquet(tmp_path / "test-00000-of-00001.parquet", rows)
    for source in (original, parquet):
        destination = tmp_path / f"from{source.suffix}"
        fetch({"source": "local", "path": str(source), "sha256": GSM8K_SHA256}, destination)
        assert destination.read_bytes() == original.read_bytes()
    assert len(load_problems(original, "number")) == 1319
