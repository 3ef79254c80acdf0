"""Table 1: its columns, its printed form, and that each of its files can be read."""

import io

import pandas as pd
import pytest

from replay.analysis import analyze
from replay.storage import write_json
from replay.tables import (
    COLUMNS,
    WRAPPED,
    escaped,
    excess_pp,
    invariance_table,
    printed,
    table1,
    with_verdicts,
    write_float,
    write_invariance,
    write_table,
)


def records(*estimates):
    return [
        {"problem_id": i, "rollout": 0, "abs_pos": 0, "margin": 0.5}
        | dict(zip(("A_exact1", "A_exact2", "A_refeed"), values, strict=True))
        for i, values in enumerate(estimates)
    ]


# Three eligible pivots: re-feed changes two signs, one of them in polarity; the replica none.
CHANGED = records((0.5, 0.5, 0.0), (0.5, 0.5, -0.5), (1.0, 1.0, 1.0))
IDENTICAL = records((0.5, 0.5, 0.5))
NAMES = [
    ("main", "Main (t=.7, K=2) 50% & <a|b>", "some_model", CHANGED),
    ("batch-invariant", "Identical", "m", IDENTICAL),
    ("empty", "No pivots", "m", []),
]


@pytest.fixture
def table():
    return table1(
        [
            {"name": name, "label": label, "model": model, "analysis": analyze(rows, 2)}
            for name, label, model, rows in NAMES
        ]
    )


def test_columns_and_values(table):
    assert list(table.columns) == COLUMNS
    header = (
        "configuration,model,n,refeed_pct,refeed_polarity_pct,floor_pct,floor_polarity_pct,"
        "excess_pp,t_clustered,z"
    )
    assert ",".join(COLUMNS) == header
    assert list(table["configuration"]) == ["main", "batch-invariant", "empty"]
    main = table.iloc[0]
    assert (main["n"], main["floor_pct"], main["floor_polarity_pct"]) == (3, 0, 0)
    assert main["refeed_pct"] == main["excess_pp"] == pytest.approx(200 / 3)
    assert main["refeed_polarity_pct"] == pytest.approx(100 / 3)
    assert main["t_clustered"] == pytest.approx(2.0)
    assert main["z"] == pytest.approx(2**0.5)


def test_excess_is_taken_before_rounding():
    sides = {"refeed": {"flip_rate": 0.33849}, "floor": {"flip_rate": 0.15051}}
    assert f"{excess_pp({'common_set': sides}):.1f}" == "18.8"  # 33.8 - 15.1 would be 18.7


def test_printed(table):
    assert printed(table).to_numpy().tolist() == [
        [NAMES[0][1], "some_model", "3", "66.7% (33.3)", "0.0% (0.0)", "+66.7", "2.00", "1.41"],
        ["Identical", "m", "1", "0.0% (0.0)", "0.0% (0.0)", "+0.0", "—", "—"],
        ["No pivots", "m", "0", "—", "—", "—", "—", "—"],
    ]


@pytest.fixture
def files(table, tmp_path):
    paths = [tmp_path / f"table1.{suffix}" for suffix in ("csv", "md", "tex")]
    write_table(table, *paths)
    return paths


def test_csv_round_trip(table, files):
    lines = files[0].read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert lines[1] == "main,some_model,3,66.666667,33.333333,0.0,0.0,66.666667,2.0,1.414214"
    assert lines[2].endswith("0.0,,")
    assert lines[3] == "empty,m,0,,,,,,,"
    read = pd.read_csv(files[0])
    pd.testing.assert_frame_equal(read, table.reset_index(drop=True), atol=1e-6, rtol=0)


def test_markdown_has_one_cell_per_column(files):
    rows = files[1].read_text(encoding="utf-8").splitlines()
    assert len(rows) == 2 + len(NAMES)
    assert all(row.replace("\\|", "").count("|") == 9 for row in rows)
    assert "| — | — | — |" in rows[-1]


def test_latex_is_escaped(files):
    text = files[2].read_text(encoding="utf-8")
    assert r"50\% \& <a|b> & some\_model & 3 & 66.7\% (33.3)" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]


def test_latex_compiles_and_is_not_too_wide(table, typeset, tmp_path):
    long = table.set_axis(
        ["Batch-invariant, FlashAttention 3 (not invariant: prefill)"] * len(table)
    )
    paths = [tmp_path / f"table1.{suffix}" for suffix in ("csv", "md", "tex")]
    write_table(long, *paths)
    assert "Overfull" not in typeset(paths[2])


SPECIAL = r"50% & #1, $x_1$ {~^\}"


def test_captions_headings_and_cells_may_hold_any_character(typeset, tmp_path):
    text = pd.DataFrame({SPECIAL: ["[a]", "*b"], "[c]": [SPECIAL] * 2})
    path = tmp_path / "float.tex"
    write_float(text, [WRAPPED] * 2, SPECIAL, "any", path)
    assert path.read_text().count(escaped(SPECIAL)) == 4
    assert "Overfull" not in typeset(path)


def test_columns_that_do_not_fit_go_to_further_floats(tmp_path):
    text = pd.DataFrame([list("abcd")], columns=list("ABCD"))
    path = tmp_path / "float.tex"
    write_float(text, ["l"] * 4, "Letters.", "letters", path, most=2)
    latex = path.read_text()
    assert [line for line in latex.splitlines() if "&" in line] == [
        r"A & B & C \\", r"a & b & c \\", r"A & D \\", r"a & d \\",
    ]  # fmt: skip
    assert r"\caption{Letters. Part 2 of 2.}" in latex
    assert r"\label{tab:letters}" in latex and r"\label{tab:letters-2}" in latex


def test_a_note_stands_under_the_table_and_not_in_its_numbers(table, tmp_path):
    files = [tmp_path / f"table1.{suffix}" for suffix in ("csv", "md", "tex")]
    write_table(table, *files, notes=["Left out: phi"])
    csv, markdown, latex = (file.read_text() for file in files)
    assert markdown.endswith("|\n\nLeft out: phi.\n") and "\n% Left out: phi\n" in latex
    assert "Left out" not in csv


NOT_INVARIANT = "not invariant: batch size, prefill"


def checked(*found):
    """Table 1 whose rows have these verdicts of their engines' self-checks."""
    return table1(
        [
            {"name": name, "label": label, "model": model, "analysis": analyze(rows, 2)}
            | {"invariance": verdict}
            for (name, label, model, rows), verdict in zip(NAMES, found, strict=True)
        ]
    )


@pytest.mark.parametrize("found", [(None, None, None), (None, "invariant", None)])
def test_a_check_that_passed_or_was_not_made_changes_nothing(table, found):
    pd.testing.assert_frame_equal(checked(*found), table)


def test_a_failed_check_is_said_by_the_label_and_a_last_column(tmp_path):
    files = [tmp_path / f"table1.{suffix}" for suffix in ("csv", "md", "tex")]
    write_table(checked(None, NOT_INVARIANT, "invariant"), *files)
    read = pd.read_csv(files[0])
    assert list(read.columns) == [*COLUMNS, "invariance"]
    assert list(read["configuration"]) == [name for name, *_ in NAMES]
    assert list(read["invariance"].fillna("")) == ["", NOT_INVARIANT, "invariant"]
    for file in files[1:]:
        text = file.read_text(encoding="utf-8")
        assert f"Identical ({NOT_INVARIANT}) " in text
        assert text.count("invariant") == 1 and "No pivots " in text
    assert all(line.count(" & ") == 7 for line in files[2].read_text().splitlines() if "&" in line)


def answered(name, identical, position=None, delta=0.0):
    first = {"sequence": "0.0", "position": position, "tokens": [1, 2], "delta": delta}
    return {
        "name": name, "positions": 60, "equal": 50, "sequences": 16, "identical": identical,
        "max_delta": delta, "first": None if position is None else first,
        "passed": identical == 16,
    }  # fmt: skip


def result(verdict, version, *checks):
    facts = {
        "device": "Some GPU", "attention_backend": "FLASH_ATTN", "flash_attn_version": version,
        "engine_process": "in-process",
    }  # fmt: skip
    return {"verdict": verdict, "checks": list(checks), "engine": facts}


CHECKS = {
    "m_stock_0a": result(
        "not invariant: prefill", 3, answered("repetition", 16), answered("prefill", 4, 7, 0.03125)
    ),
    "m_batch-invariant_1b": result("invariant", None, answered("repetition", 16)),
}


@pytest.fixture
def check_files(tmp_path):
    for name, content in CHECKS.items():
        write_json(tmp_path / f"{name}.json", content)
    return [str(tmp_path / f"{name}.json") for name in CHECKS]


def test_verdicts_go_to_the_rows_by_the_names_of_the_files(check_files):
    rows = [{"engine_set": name} for name in (*CHECKS, "m_unchecked_2c", None)]
    found = [row["invariance"] for row in with_verdicts(rows, check_files)]
    assert found == ["not invariant: prefill", "invariant", None, None]
    assert with_verdicts(rows[:1], []) == [rows[0] | {"invariance": None}]


def test_one_row_an_engine_and_question():
    table = invariance_table(CHECKS)
    assert list(table["engine"]) == ["m_stock_0a"] * 2 + ["m_batch-invariant_1b"]
    assert list(table["check"]) == ["repetition", "prefill", "repetition"]
    assert list(table["attention"]) == ["FLASH_ATTN 3"] * 2 + ["FLASH_ATTN"]
    assert list(table["identical"]) == [16, 4, 16] and set(table["sequences"]) == {16}
    assert list(table["first_position"].fillna(-1)) == [-1, 7, -1]
    assert list(table["max_delta_nats"]) == [0, 0.03125, 0]
    assert list(table["verdict"]) == ["not invariant: prefill"] * 2 + ["invariant"]


def test_the_self_checks_are_written_and_shown(check_files, tmp_path):
    csv, markdown, console = tmp_path / "i.csv", tmp_path / "i.md", io.StringIO()
    write_invariance(check_files, csv, markdown, console)
    read = pd.read_csv(csv, dtype={"first_position": "Int64"})
    pd.testing.assert_frame_equal(read, invariance_table(CHECKS), check_dtype=False)
    text = markdown.read_text(encoding="utf-8")
    assert console.getvalue() == text + "\n"
    lines = text.splitlines()
    assert len(lines) == 2 + 3 and all(line.count("|") == 11 for line in lines)
    assert "| prefill | Some GPU | FLASH_ATTN 3 | in-process | 4 | 16 | 7 | 0.0312 |" in lines[3]
    assert "| 16 | 16 | — | 0 | invariant |" in lines[4]
