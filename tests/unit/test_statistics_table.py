"""The second table: every statistic in a line, Holm over configurations, and its printed form."""

import pandas as pd
import pytest
from test_planning import study
from test_report import configuration

from replay.analysis import analyze
from replay.beyond import beyond
from replay.statistics_table import (
    COLUMNS,
    NAMES,
    printed_statistics,
    statistics_table,
    write_statistics,
)


@pytest.fixture(scope="module")
def rows():
    stored = study(4, 4, 4, 0.2, seed=1)
    graders = {"strict": "right", "lax": "wrong"}
    for record in stored:
        record["outcomes_by_grader"] = {
            p: {arm: [graders] * 4 for arm in ("actual", "alt")} for p in record["outcomes"]
        }
    full = configuration("Full") | {"analysis": analyze(stored, 4) | beyond(stored, 4)}
    ten, eight = (configuration(f"All {n}", *["rs"] * n) for n in (10, 8))
    return [ten, eight, configuration("Same", "ss", "s"), configuration("None"), full]


@pytest.fixture(scope="module")
def table(rows):
    return statistics_table(rows).set_index(["configuration", "statistic", "comparison", "group"])


def value(table, *key):
    return table.loc[key, "value"]


def test_columns_and_statistics(rows):
    table = statistics_table(rows)
    assert list(table.columns) == COLUMNS
    for name in ("all_10", "none", "full"):
        assert set(table[table["configuration"] == name]["statistic"]) == set(NAMES)
    assert not table.duplicated(COLUMNS[:4]).any()


def test_values_are_those_of_the_analysis(rows, table):
    intervals = rows[4]["analysis"]["intervals"]
    line = table.loc["full", "excess_pp", "", "eligible"]
    assert line["value"] == 100 * intervals["excess"]["estimate"]
    assert [line["low"], line["high"]] == pytest.approx(
        [100 * bound for bound in intervals["excess"]["ci95"]]
    )
    replica = table.loc["full", "jaccard", "replica", "threshold 0.5"]
    assert replica["value"] == intervals["replica_jaccard"]["estimate"]
    assert value(table, "full", "sign_changes_pct", "re-feed", "offset 0") == pytest.approx(
        value(table, "full", "sign_changes_pct", "re-feed", "eligible")
    )
    assert table.loc["full", "sign_changes_pct", "re-feed", "grader lax"]["n"] == 0


def test_undefined_values_are_empty_with_a_reason(table):
    assert table.loc["same", "excess_pp", "", "eligible"]["note"] == "no variance"
    assert pd.isna(table.loc["same", "excess_pp", "", "eligible"]["low"])
    assert pd.isna(value(table, "none", "p_sign_flip", "", "problems"))
    assert table.loc["all_10", "p_sign_flip", "", "problems"]["note"] == "exact"


def test_holm_is_over_the_configurations_with_a_p(table):
    # Two and not five tests, plus the fifth configuration's: 2/2^10, 2/2^8 and a larger one.
    assert value(table, "all_10", "p_sign_holm", "", "problems") == pytest.approx(3 * 2 / 2**10)
    assert value(table, "all_8", "p_sign_holm", "", "problems") == pytest.approx(2 * 2 / 2**8)
    full = value(table, "full", "p_sign", "", "problems")
    assert value(table, "full", "p_sign_holm", "", "problems") == pytest.approx(max(full, 4 / 2**8))
    assert pd.isna(value(table, "same", "p_sign_holm", "", "problems"))


def test_k_that_is_not_reached_is_said(rows):
    text = printed_statistics(statistics_table(rows), {"full": "Full", "same": "Same"})
    lines = text.set_index("Statistic")
    assert lines.loc["K for a Jaccard of 0.9, fresh seeds", "Full"] == "not reached up to K=8"
    assert lines.loc["K for a Jaccard of 0.9, fresh seeds", "Same"] == "—"


def test_printed(rows):
    labels = {row["name"]: row["label"] for row in rows}
    text = printed_statistics(statistics_table(rows), labels).set_index("Statistic")
    assert list(text.columns) == list(labels.values())
    assert list(text.loc["Excess (pp)"][1:4]) == ["+50.0 [no variance]", "+0.0 [no variance]", "—"]
    assert text.loc["Sign changes (%), margin decile 1", "All 8"] == "50.0 / 0.0"
    assert text.loc["Sign test p after Holm", "All 8"] == "0.016"
    assert not text.isin(["nan", "None", "<NA>"]).any(axis=None)


def test_files(rows, tmp_path):
    paths = [tmp_path / f"statistics.{suffix}" for suffix in ("csv", "md", "tex")]
    write_statistics(rows, *paths)
    read = pd.read_csv(paths[0])
    assert list(read.columns) == COLUMNS and len(read) == len(statistics_table(rows))
    p = read[(read["configuration"] == "all_10") & (read["statistic"] == "p_sign")]["value"]
    assert p.item() == pytest.approx(2 / 2**10)
    header, rule, *lines = paths[1].read_text(encoding="utf-8").splitlines()
    assert header.startswith("| Statistic | All 10 |") and rule.startswith("| --- | ---: |")
    assert all(line.count("|") == len(rows) + 2 for line in lines)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_latex_compiles_and_is_not_too_large(rows, typeset, tmp_path, count):
    label = "Batch-invariant, FlashAttention 3 & 50% (not invariant: prefill)"
    many = [rows[place % len(rows)] | {"name": str(place), "label": f"{label} {place}"}
            for place in range(count)]  # fmt: skip
    paths = [tmp_path / f"statistics.{suffix}" for suffix in ("csv", "md", "tex")]
    write_statistics(many, *paths)
    log = typeset(paths[2])
    assert "Overfull" not in log and "Float too large" not in log
    latex = paths[2].read_text()
    assert all(f"prefill) {place} " in latex for place in range(count))
