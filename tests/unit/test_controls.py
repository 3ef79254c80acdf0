"""The controls against values computed by hand, planted effects, and records without them."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.controls import COMPARISONS, PARTS, controls, order_test
from replay.controls_page import MEANINGS, figure4, readings, tables
from replay.controls_table import NOT_APPLICABLE, QUANTITIES, printed2, table2, write_controls
from replay.protocol import CATALOGUE, PASSES

FIVE = [*PASSES, "refeed2", "prefill_warm"]


def record(problem, position, estimates, **fields):
    key = {"problem_id": problem, "rollout": 0, "abs_pos": position, "margin": 0.5}
    return key | {f"A_{name}": value for name, value in estimates.items()} | fields


def content(records, passes=FIVE, k=2, orders=None):
    problems = sorted({r["problem_id"] for r in records})
    return {
        "config": {"k": k, "passes": list(passes)},
        "per_problem": [
            {"problem_id": p, "pass_order": (orders or {}).get(p, list(passes))} for p in problems
        ],
        "pivots": records,
    }


def five(problem, position, *values):
    return record(problem, position, dict(zip(FIVE, values, strict=True)))


# exact1, exact2, refeed, refeed2, prefill_warm
HAND = [
    five(1, 0, 0.5, 0.5, 0.0, 0.0, 0.0),  # state alone
    five(1, 1, 0.5, 0.5, 0.0, 0.0, 0.5),  # batch alone
    five(2, 0, 0.5, 0.5, 0.5, 0.5, 0.0),  # both parts, no total: 2 above it
    five(2, 1, 0.5, 0.0, -0.5, 0.0, 0.0),  # both parts and the total: 1 above it
    five(3, 0, 0.0, 0.0, 0.0, 0.0, 0.5),  # eligible through prefill_warm only
    five(3, 1, 0.0, 0.0, 0.0, 0.0, 0.0),  # not eligible
    five(3, 2, 1.0, 1.0, 1.0, 1.0, 1.0),
]


@pytest.fixture(scope="module")
def hand():
    return controls(content(HAND))


def row(result, name="main", **fields):
    texts = {"name": name, "label": f"Label of {name}", "model": "m", "numerics": "stock"}
    return texts | {"analysis": result, "settings": {}} | fields


def test_sign_changes_of_each_comparison(hand):
    flips = {name: pair["flips"] for name, pair in hand["comparisons"].items()}
    assert flips == {"refeed": 3, "state": 4, "batch": 4, "floor": 1, "refeed_floor": 1}
    assert {pair["n"] for pair in hand["comparisons"].values()} == {6}
    assert hand["comparisons"]["refeed"]["polarity_reversals"] == 1
    assert hand["comparisons"]["state"]["rate"]["estimate"] == pytest.approx(4 / 6)


def test_the_parts_and_what_they_sum_to_above_the_total(hand):
    parts = hand["decomposition"]
    assert parts["missing"] == []
    assert parts["shares"]["state"]["estimate"] == pytest.approx(4 / 3)
    assert parts["surplus"]["estimate"] == pytest.approx((4 + 4 - 3) / 6)


def test_rates_that_add_up_are_said_to():
    records = [five(p, 0, 0.5, 0.5, 0.0, 0.0, 0.0 if p % 2 else 0.5) for p in range(8)]
    parts = controls(content(records))["decomposition"]
    assert parts["surplus"]["estimate"] == 0 and parts["adds_up"] is True
    parts = controls(content([five(0, 0, 0.5, 0.5, 0.0, 0.0, 0.5)]))["decomposition"]
    assert parts["surplus"]["estimate"] == 0 and parts["adds_up"] is None  # of one problem
    once = [five(p, 0, 0.5, 0.5, 0.5, 0.5, 0.0 if p == 9 else 0.5) for p in range(10)]
    parts = controls(content(once))["decomposition"]
    assert parts["surplus"]["ci95"][0] == 0 < parts["surplus"]["estimate"]
    assert parts["adds_up"] is None
    both = [five(p, 0, 0.5, 0.5, 0.5, 0.5, 0.5 if p == 9 else 0.0) for p in range(10)]
    parts = controls(content(both))["decomposition"]
    assert parts["surplus"]["estimate"] == pytest.approx(1.8) and parts["adds_up"] is False


VALUES = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), *[VALUES] * 5), min_size=1, max_size=12))
def test_signed_differences_add_and_rates_do_not_sum_to_less(rows):
    records = [five(problem, i, *values) for i, (problem, *values) in enumerate(rows)]
    result = controls(content(records))
    pairs = result["comparisons"]
    means = {n: pairs[n]["mean_difference"]["estimate"] for n in ("refeed", *PARTS)}
    if means["refeed"] is None:
        assert pairs["refeed"]["n"] == 0 and set(means.values()) == {None}
        return
    assert means["state"] + means["batch"] == pytest.approx(means["refeed"])
    assert pairs["state"]["flips"] + pairs["batch"]["flips"] >= pairs["refeed"]["flips"]
    assert result["decomposition"]["surplus"]["estimate"] >= 0
    json.dumps(result, allow_nan=False)


def test_records_of_three_passes_have_no_decomposition():
    three = [record(p, 0, dict(zip(PASSES, (0.5, 0.5, 0.0), strict=True))) for p in range(3)]
    published = {"config": {"k": 2}, "per_problem": [{"problem_id": 0}], "pivots": three}
    result = controls(published)
    assert set(result["comparisons"]) == {"refeed", "floor"}
    assert result["decomposition"]["missing"] == ["state", "batch"]
    assert result["fidelity"] is None and result["text_tokens"] is None
    assert result["order_effect"]["p"] is None
    printed = printed2([row(result)])
    assert printed.loc[0, "Recomputed state"] == printed.loc[0, "State share"] == NOT_APPLICABLE
    assert printed.loc[0, "Re-feed"] == "100.0 [no variance]"
    table = table2([row(result)])
    assert table.loc[0, "note"] == f"{NOT_APPLICABLE}: no prefill_warm pass"
    assert np.isnan(table.loc[0, "state_pct"]) and table.loc[0, "refeed_pct"] == 100
    assert "the decomposition is not applicable" in readings([row(result)])[0][1]


def test_without_a_pivot_nothing_is_said():
    result = controls(content([]))
    assert result["comparisons"]["state"]["n"] == 0
    assert result["decomposition"]["adds_up"] is None
    assert printed2([row(result)]).loc[0, "Recomputed state"] == "\N{EM DASH}"
    assert [t["caption"] for t in tables([row(result)])][0].startswith("Table 2")


def test_table2_and_its_files(hand, tmp_path):
    rows = [row(hand), row(hand, "other", invariance="not invariant: prefill")]
    table = table2(rows)
    assert list(table["configuration"]) == ["main", "other"]
    assert table.loc[0, "refeed_pct"] == pytest.approx(50)
    assert table.loc[0, "state_share_pct"] == pytest.approx(400 / 3)
    parts = table.loc[0, ["state_mean_difference", "batch_mean_difference"]].sum()
    assert parts == pytest.approx(table.loc[0, "refeed_mean_difference"])
    paths = [tmp_path / f"table2.{kind}" for kind in ("csv", "md", "tex")]
    write_controls(rows, *paths)
    assert pd.read_csv(paths[0]).loc[0, "floor_pct"] == pytest.approx(100 / 6)
    assert "| Label of other (not invariant: prefill) | 6 | 50.0 [" in paths[1].read_text()
    latex = paths[2].read_text()
    assert r"\label{tab:controls}" in latex and latex.count(r"\\") == 3


LONG = "Batch-invariant, FlashAttention 3"


def test_latex_of_table2_compiles_and_is_not_too_wide(hand, typeset, tmp_path):
    without = controls({"config": {"k": 2}, "per_problem": [{"problem_id": 0}], "pivots": []})
    rows = [
        row(hand, LONG, invariance="not invariant: prefill"),
        row(hand, r"50% & #1, $x_1$ {~^\}"),
        row(without, "[serial]"),
    ]
    paths = [tmp_path / f"table2.{kind}" for kind in ("csv", "md", "tex")]
    write_controls(rows, *paths)
    assert NOT_APPLICABLE in paths[1].read_text() and " n/a " in paths[2].read_text()
    assert "Overfull" not in typeset(paths[2])


def planted(effect, problems=30, seed=1):
    """Rates of four passes in random places, with this much more a place, and noise."""
    rng = np.random.default_rng(seed)
    places = np.array([rng.permutation(5)[:4] for _ in range(problems)], float)
    own = np.array([0.0, 0.3, 0.3, 0.6])
    return own + effect * places + rng.normal(0, 0.05, places.shape), places


def test_a_planted_order_effect_is_detected_and_none_where_none_is():
    found = order_test(*planted(0.05))
    assert found["p"] < 0.001 and found["slope"] == pytest.approx(0.05, abs=0.01)
    below = [order_test(*planted(0, seed=seed))["p"] < 0.05 for seed in range(40)]
    assert sum(below) <= 6  # of 40 at the 5% level: more has a probability of 1%


def test_few_problems_are_tested_by_all_permutations():
    places = np.array([[0.0], [1.0], [2.0]])
    result = order_test(np.array([[0.0], [0.5], [1.0]]), places)
    assert result["p"] == pytest.approx(2 / 6) and result["slope"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rates", "places", "reason"),
    [
        ([[0.5]], [[1]], "fewer than two problems"),
        ([[0.5, 0.0], [0.0, 1.0]], [[1, 2], [1, 2]], "the order does not vary"),
        ([[0.5, 0.0], [0.5, 0.0]], [[1, 2], [2, 1]], "the rates do not vary"),
    ],
)
def test_an_order_effect_that_cannot_be_tested_says_why(rates, places, reason):
    result = order_test(np.array(rates, float), np.array(places, float))
    assert result["p"] is None and result["undefined"] == reason


def test_the_order_is_that_of_each_problem():
    """Re-feed flips where it ran last, and nothing else matters."""
    records, orders = [], {}
    for problem in range(12):
        last = problem % 2 == 0
        orders[problem] = [*PASSES] if last else ["refeed", "exact1", "exact2"]
        values = dict(zip(PASSES, (0.5, 0.5, 0.0 if last else 0.5), strict=True))
        records.append(record(problem, 0, values))
    effect = controls(content(records, PASSES, orders=orders))["order_effect"]
    assert effect["n_problems"] == 12 and effect["slope"] > 0 and effect["p"] < 0.02
    shown = readings([row(controls(content(records, PASSES, orders=orders)))])
    assert any("permutation test over 12 problems" in text for _, text in shown)


def test_fidelity_counts_what_it_leaves_out():
    def fields(delta, offset, ends=False):
        deltas = {f"trunk_delta_{name}": delta for name in FIVE}
        return {"offset": offset, "next_topk": None if ends else [[1, -0.5]]} | deltas

    values = (0.5, 0.5, 0.5, 0.5, 0.5)
    records = [
        five(0, 0, *values) | fields(0.0, 0),
        five(0, 1, *values) | fields(0.25, 0),
        five(0, 2, *values) | fields(None, 1),
        five(0, 3, *values) | fields(None, 2, ends=True),
    ]
    result = controls(content(records))["fidelity"]["refeed2"]
    assert (result["n"], result["rollout_ends"], result["not_in_topk"]) == (2, 1, 1)
    assert (result["bit_exact_rate"], result["median"], result["p90"]) == (0.5, 0.25, 0.25)
    assert [(part["offset"], part["n"]) for part in result["by_offset"]] == [(0, 2), (1, 0), (2, 0)]
    captions = [t["caption"] for t in tables([row(controls(content(records)))])]
    assert captions[-1].startswith("Fidelity")


def test_pivots_whose_tokens_changed_on_their_way_through_text():
    passes = [*PASSES, "text_refeed"]

    def one(position, text, actual, alt):
        values = dict(zip(passes, (0.5, 0.5, 0.5, text), strict=True))
        return record(0, position, values, text_changed={"actual": actual, "alt": alt})

    records = [one(0, 0.0, True, False), one(1, 0.5, True, True), one(2, -0.5, False, False)]
    result = controls(content(records, passes))
    assert result["text_tokens"] == {
        "n": 3, "changed": 2, "changed_rate": pytest.approx(2 / 3), "arms_changed": 3,
        "with_change": {"n": 2, "flips": 1, "flip_rate": 0.5},
        "without_change": {"n": 1, "flips": 1, "flip_rate": 1.0},
    }  # fmt: skip
    assert result["comparisons"]["text"]["flips"] == 2
    assert any("2 of 3 pivots have other token ids" in t for _, t in readings([row(result)]))


def test_the_floor_of_seeded_arrivals_stands_beside_that_of_timing(hand):
    passes = [*PASSES, "staggered", "staggered2"]
    values = [(0.5, 0.5, 0.0, 0.5, 0.0), (0.5, 0.5, 0.5, 0.5, 0.5)]
    records = [record(p, 0, dict(zip(passes, values[p % 2], strict=True))) for p in range(4)]
    seeded = row(controls(content(records, passes)))
    timed = row(hand, "core", settings={"engine.process": "engine-core"})
    other = row(hand, "invariant", settings=timed["settings"], numerics="batch-invariant")
    (text,) = [t for _, t in readings([seeded, timed, other]) if "seeded arrivals" in t]
    assert "a replica floor of 50.0% [" in text and "it is 16.7% [" in text
    assert text.endswith("in “Label of core”.")


def test_comparisons_and_columns_name_what_there_is(hand):
    assert {name for c in COMPARISONS.values() for name in c[:2]} == set(CATALOGUE)
    assert list(MEANINGS)[1:] == [heading for heading, *_ in QUANTITIES.values()]
    caption = figure4([row(hand)])
    assert "re-feed: re-feed against exact 1" in caption and "staggered" not in caption
