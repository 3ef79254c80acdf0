"""Table 1: its columns, its printed form, and that each of its files can be read."""

import shutil
import subprocess

import pandas as pd
import pytest

from replay.analysis import analyze
from replay.tables import COLUMNS, excess_pp, printed, table1, write_table


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


def test_latex_compiles(files):
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed")
    document = files[2].with_name("document.tex")
    document.write_text(
        r"\documentclass{article}\usepackage{booktabs}\usepackage[T1]{fontenc}"
        r"\begin{document}\input{table1.tex}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", document.name]
    result = subprocess.run(command, cwd=document.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:]


def test_a_note_stands_under_the_table_and_not_in_its_numbers(table, tmp_path):
    files = [tmp_path / f"table1.{suffix}" for suffix in ("csv", "md", "tex")]
    write_table(table, *files, note="Left out: phi")
    csv, markdown, latex = (file.read_text() for file in files)
    assert markdown.endswith("|\n\nLeft out: phi.\n") and "\n% Left out: phi\n" in latex
    assert "Left out" not in csv
