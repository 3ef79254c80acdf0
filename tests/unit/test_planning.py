"""Power and numbers of continuations against libraries, brute force and simulations."""

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from replay import planning
from replay.analysis import analyze
from replay.beyond import beyond
from replay.planning import (
    K_GRID,
    PROBLEM_GRID,
    detectable_excess,
    k_needed,
    needed_sentence,
    observed_by_k,
    plan_table,
    replica_overlap,
    same_design,
    write_plan,
)

PASSES = ("exact1", "exact2", "refeed")


def test_detectable_excess_is_found_four_times_in_five():
    """The power by the noncentral t, and by simulated studies of that size."""
    differences = np.array([0.1, 0.4, -0.2, 0.3, 0.0, 0.5, 0.2, 0.1, 0.6, -0.1])
    result = detectable_excess(differences)
    assert result["sd"] == pytest.approx(differences.std(ddof=1))
    center = result["excess"] / result["sd"] * 10**0.5
    t = stats.t.ppf(0.975, 9)
    power = stats.nct.sf(t, 9, center) + stats.nct.cdf(-t, 9, center)
    assert power == pytest.approx(0.8, abs=1e-6)
    studies = np.random.default_rng(0).normal(result["excess"], result["sd"], (4000, 10))
    found = stats.ttest_1samp(studies, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.02)


def test_more_problems_detect_less():
    excesses = [detectable_excess(np.array([0.0, 1.0]), n)["excess"] for n in PROBLEM_GRID]
    assert excesses == sorted(excesses, reverse=True) and excesses[-1] > 0


@pytest.mark.parametrize(
    ("differences", "n"),
    [([], 10), ([0.5], 10), ([0.1, 0.1, 0.1], 10), ([0.0, 1.0], 1), ([0.0, 1.0], 2)],
)
def test_without_variance_or_enough_problems_nothing_is_detectable(differences, n):
    assert detectable_excess(np.array(differences), n)["excess"] is None


def test_selection_probabilities_equal_enumeration():
    """K = 2, both arms, all outcomes of both passes."""
    rates, diverted, k = np.array([[0.7, 0.2]]), 0.3, 2
    tables = planning._pair_tables(rates, diverted)
    assert tables[0, 0] == pytest.approx(
        np.array([[0.3 - 0.3 * 0.21, 0.3 * 0.21], [0.3 * 0.21, 0.7 - 0.3 * 0.21]])
    )
    both = either = 0.0
    pairs = list(product((0, 1), repeat=2))
    for draws in product(pairs, repeat=2 * k):
        p = np.prod([tables[0, place // k][pair] for place, pair in enumerate(draws)])
        sizes = [
            abs(sum(pair[i] for pair in draws[:k]) - sum(pair[i] for pair in draws[k:])) / k
            for i in range(2)
        ]
        both += p * (min(sizes) >= 0.5)
        either += p * (max(sizes) >= 0.5)
    assert [p[0] for p in planning._selected(tables, k, 0.5)] == pytest.approx([both, either])


def outcome(right):
    return ["right" if flag else "wrong" for flag in right]


def study(problems, pivots, k, diverted, seed, refeed_noise=0.3):
    """Records of a study whose model is that of ``replica_overlap``."""
    rng = np.random.default_rng(seed)
    rows = []
    for problem, position in product(range(problems), range(pivots)):
        first = rng.choice([0.1, 0.5, 0.9])
        rates = np.array([first, np.clip(first - rng.choice([0.0, 0.4, 0.8]), 0, 1)])
        one, fresh = (rng.random((2, k)) < rates[:, None] for _ in range(2))
        two = np.where(rng.random((2, k)) < diverted, fresh, one)
        three = np.where(rng.random((2, k)) < refeed_noise, fresh, one)
        passes = dict(zip(PASSES, (one, two, three), strict=True))
        rows.append(
            {"problem_id": problem, "rollout": 0, "abs_pos": 16 * position, "margin": 0.5}
            | {f"A_{n}": float(r[0].mean() - r[1].mean()) for n, r in passes.items()}
            | {
                "outcomes": {
                    name: {"actual": outcome(r[0]), "alt": outcome(r[1])}
                    for name, r in passes.items()
                }
            }
        )
    return rows


def overlap(rows):
    one, two = (np.abs([r[f"A_{p}"] for r in rows]) >= 0.5 for p in PASSES[:2])
    return (one & two).sum() / (one | two).sum()


def test_the_model_foretells_other_k():
    """Fitted at K = 4, compared with studies of the same kind at every K within its reach."""
    result = replica_overlap(study(40, 40, 4, diverted=0.2, seed=1), 4, 0.5)
    assert result["diverted"] == pytest.approx(0.2, abs=0.03)
    assert [row["k"] for row in result["by_k"]] == [2, 4, 8]
    for row in result["by_k"]:
        for name, diverted in (("same_seeds", 0.2), ("fresh_seeds", 1.0)):
            truth = overlap(study(60, 60, row["k"], diverted, seed=row["k"]))
            assert row[name]["estimate"] == pytest.approx(truth, abs=0.06)


def test_identical_passes_overlap_at_any_k():
    result = replica_overlap(study(3, 5, 2, diverted=0.0, seed=2), 2, 0.5)
    assert result["diverted"] == 0.0
    assert {row["same_seeds"]["estimate"] for row in result["by_k"]} == {1.0}
    assert result["k_needed"]["same_seeds"] == 2


def test_pivots_that_are_always_right_select_nothing():
    always = {name: {"actual": ["right"] * 4, "alt": ["right"] * 4} for name in PASSES}
    rows = [{"problem_id": i, "outcomes": always} for i in range(3)]
    result = replica_overlap(rows, 4, 0.5)
    assert {row["fresh_seeds"]["undefined"] for row in result["by_k"]} == {"no denominator"}
    assert result["k_needed"]["fresh_seeds"] is None


def test_one_outcome_an_arm_and_none_say_nothing():
    nothing = {"diverted": None, "by_k": None, "k_needed": None}
    assert replica_overlap(study(3, 5, 1, 0.2, seed=3), 1, 0.5) == nothing
    assert replica_overlap([{"problem_id": 1}], 4, 0.5) == nothing


@pytest.mark.parametrize(
    ("overlaps", "expected"),
    [
        ([0.5, 0.9, 0.95], 4),
        ([0.95, 0.8, 0.9], 8),
        ([0.95, 0.95, 0.89], None),
        ([0.9, 0.9, None], None),
        ([0.9, 0.9, 0.9], 2),
    ],
)
def test_k_needed_is_where_the_overlap_stays(overlaps, expected):
    rows = [{"k": k, "x": {"estimate": v}} for k, v in zip((2, 4, 8), overlaps, strict=True)]
    assert k_needed(rows, "x") == expected


def row(name, records, k, **config):
    content = {
        "config": {"k": k, "rollouts": 8, "temperature": 0.7} | config,
        "per_problem": [{"problem_id": i} for i in range(10)],
        "pivots": records,
    }
    analysis = analyze(records, k) | beyond(records, k)
    fields = {"name": name, "label": name.upper(), "model": "m", "numerics": "stock"}
    return fields | {"records": content, "analysis": analysis}


@pytest.fixture(scope="module")
def rows():
    four = row("main", study(8, 6, 4, 0.2, seed=4), 4)
    eight = row("k8", study(6, 6, 8, 0.2, seed=5), 8)
    greedy = row("greedy", study(6, 6, 1, 0.2, seed=6), 1, cont_temp=0.0)
    other = row("other", study(6, 6, 8, 0.2, seed=7), 8) | {"numerics": "batch-invariant"}
    return [four, eight, greedy, other]


def test_only_configurations_that_differ_in_k_are_compared(rows):
    assert [r["name"] for r in same_design(rows)] == ["main", "k8"]
    assert [r["name"] for r in same_design(rows[::-1])] == ["other"]


def test_observed_overlap_is_on_shared_problems(rows):
    four, eight = observed_by_k(rows)
    assert (four["k"], eight["k"]) == (4, 8)
    shared = [r for r in rows[0]["records"]["pivots"] if r["problem_id"] < 6]
    assert four["shared"]["estimate"] == pytest.approx(overlap(shared))
    assert eight["shared"]["estimate"] == pytest.approx(overlap(rows[1]["records"]["pivots"]))
    assert observed_by_k(rows[:1]) == observed_by_k([]) == []


def test_plan(rows):
    table = plan_table(rows).set_index(["problems", "k"])
    assert list(table.index) == list(product(PROBLEM_GRID, K_GRID))
    line = table.loc[20, 4]
    # 10 problems measured, 8 of them with 6 pivots each: 4.8 a problem.
    assert line["requests"] == 20 * (8 + 4.8 * 3 * 2 * 5)
    assert line["sd_from"] == "main" and line["replica_jaccard_basis"] == "observed"
    analysis = rows[0]["analysis"]
    assert line["replica_jaccard"] == analysis["intervals"]["replica_jaccard"]["estimate"]
    eligible = analysis["detectable_excess"]["n_problems"]
    sums = analysis["per_problem"]
    excess = (np.array(sums["refeed_flips"]) - sums["floor_flips"]) / np.array(sums["eligible"])
    expected = detectable_excess(excess, 20 * eligible // 10)["excess"]
    assert line["detectable_excess_pp"] == pytest.approx(100 * expected)
    assert table.loc[20, 8]["sd_from"] == "k8"
    modelled = {
        row["k"]: row["same_seeds"] for row in rows[1]["analysis"]["replica_overlap"]["by_k"]
    }
    assert table.loc[20, 16]["replica_jaccard"] == modelled[16]["estimate"]
    assert table.loc[20, 16]["replica_jaccard_basis"] == "model"
    assert table.loc[20, 16]["sd_from"] == "main"
    assert pd.isna(table.loc[20, 32]["replica_jaccard"])
    assert table.loc[20, 32]["requests"] > table.loc[20, 16]["requests"]


def test_plan_files(rows, tmp_path):
    write_plan(rows, tmp_path / "plan.csv", tmp_path / "plan.md")
    read = pd.read_csv(tmp_path / "plan.csv")
    assert len(read) == len(PROBLEM_GRID) * len(K_GRID)
    text = (tmp_path / "plan.md").read_text(encoding="utf-8")
    assert "planned from “MAIN”" in text and "| K8 | 8 | 10 | 6 |" in text
    assert "nan" not in text.lower() and "None" not in text
    assert needed_sentence(rows) in text


def test_plan_of_a_run_without_outcomes_or_pivots(tmp_path):
    plain = [{k: v for k, v in r.items() if k != "outcomes"} for r in study(4, 4, 4, 0.2, seed=8)]
    for records in (plain, []):
        write_plan([row("main", records, 4)], tmp_path / "plan.csv", tmp_path / "plan.md")
        text = (tmp_path / "plan.md").read_text(encoding="utf-8")
        assert "nothing is observed over K" in text and "nan" not in text.lower()
        assert "are not stored for “MAIN”" in text
        assert "elsewhere (—) a pilot is needed" in text and "The model" not in text
    assert json.loads(json.dumps(plan_table([row("main", [], 4)]).fillna("").to_dict("records")))
