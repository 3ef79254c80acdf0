"""What the analysis says beyond the paper: by hand, degenerate, symmetric, and published data."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from test_analysis import HAND, record, runs, with_passes

from replay import inference
from replay.analysis import analyze, pool
from replay.beyond import beyond


@pytest.fixture(scope="module")
def hand():
    return beyond(HAND, k=2)


@pytest.fixture
def quick(monkeypatch):
    """Few resamples: what is tested does not depend on their number."""
    monkeypatch.setattr(inference.ratio_interval, "__defaults__", (100,))


def rate(sides):
    return [(sides[name]["flips"], sides[name]["n"]) for name in ("refeed", "floor")]


def test_sums_by_problem(hand):
    assert hand["per_problem"] == {
        "problem_id": [1, 2, 3, 4],
        "eligible": [3, 3, 0, 1],
        "refeed_flips": [2, 1, 0, 1],
        "floor_flips": [1, 1, 0, 0],
        "refeed_both": [2, 1, 0, 1],
        "refeed_either": [3, 2, 0, 1],
        "replica_both": [2, 1, 0, 1],
        "replica_either": [3, 2, 0, 1],
    }


def test_estimates_are_those_of_the_paper(hand):
    paper = analyze(HAND, k=2)
    sides, intervals = paper["common_set"], hand["intervals"]
    assert intervals["refeed_rate"]["estimate"] == sides["refeed"]["flip_rate"] == 4 / 7
    assert intervals["floor_rate"]["estimate"] == sides["floor"]["flip_rate"] == 2 / 7
    assert intervals["excess"]["estimate"] == 2 / 7
    assert intervals["floor_share"]["estimate"] == 0.5
    selection = paper["critical_token_jaccard"]["thr_0.5"]
    for name in ("refeed", "replica"):
        assert intervals[f"{name}_jaccard"]["estimate"] == selection[f"{name}_vs_exact1"]
        assert intervals[f"{name}_jaccard"] == hand["jaccard_curve"][0][name]


def test_tests_by_hand(hand):
    # Differences 1/3, 0 and 1: two of two positive; both sign assignments of four reach 4/3.
    assert hand["tests"] == {
        "sign": {"p": 0.5, "n": 2},
        "sign_flip": {"p": 0.5, "n": 2, "method": "exact"},
        "mcnemar": {"p": pytest.approx(0.6875), "n": 6},
    }


def test_curve_by_hand(hand):
    curve = [
        (p["threshold"], p["refeed"]["estimate"], p["replica"]["estimate"])
        for p in hand["jaccard_curve"]
    ]
    assert curve == [(0.5, pytest.approx(4 / 6), pytest.approx(4 / 6)), (1.0, 0.5, 1.0)]


def test_recorded_offsets_group_the_eligible_pivots():
    offsets = [0, 0, 2, 2, 1, 1, 0, 0]
    records = [r | {"offset": offset} for r, offset in zip(HAND, offsets, strict=True)]
    groups = beyond(records, k=2)["by_offset"]
    assert [(g["offset"], rate(g)) for g in groups] == [
        (0, [(2, 3), (1, 3)]),
        (1, [(0, 2), (1, 2)]),
        (2, [(2, 2), (0, 2)]),
    ]


def test_offsets_follow_from_the_position_where_the_paper_fixes_the_block():
    records = [r | {"abs_pos": 16 * i + i % 3} for i, r in enumerate(HAND)]
    assert [g["offset"] for g in beyond(records, k=2)["by_offset"]] == [0, 1, 2]
    # Positions 0 to 7 are not within two tokens of a boundary: another block size, unknown.
    assert beyond(HAND, k=2)["by_offset"] is None


def test_margin_deciles_hold_a_tenth_each():
    margins = np.random.default_rng(0).permutation(50) / 50
    records = [record(1, 1, 1, i % 2, i, m) for i, m in enumerate(margins)]
    groups = beyond(records, k=1)["by_margin_decile"]
    assert [g["refeed"]["n"] for g in groups] == [5] * 10
    assert [(g["low"], g["high"]) for g in groups[:2]] == [(0.0, 0.08), (0.1, 0.18)]


def test_equal_margins_stay_together():
    """Also where they differ by float32 rounding alone."""
    margins = [0.25, 0.25 + 6e-8] * 10 + [0.5]
    records = [record(1, 1, 1, 0, i, m) for i, m in enumerate(margins)]
    groups = beyond(records, k=1)["by_margin_decile"]
    assert [(g["high"], g["refeed"]["n"]) for g in groups] == [(0.25, 20), (0.5, 1)]


def graded(one, two, refeed):
    """Outcomes by grader of one pivot; each pass is (right by strict, right by lax) per arm."""
    names = ("exact1", "exact2", "refeed")
    return {
        name: {
            arm: [{g: "right" if right else "wrong" for g, right in zip("sl", flags, strict=True)}]
            for arm, flags in zip(("actual", "alt"), arms, strict=True)
        }
        for name, arms in zip(names, (one, two, refeed), strict=True)
    }


def test_every_grader_has_its_own_eligible_pivots():
    yes, no, lax = (1, 1), (0, 0), (0, 1)
    records = [
        record(1, 1, 1, 0, 0, outcomes_by_grader=graded((yes, no), (yes, no), (lax, no))),
        record(1, 0, 0, 0, 1, outcomes_by_grader=graded((lax, no), (no, no), (lax, no))),
    ]
    result = beyond(records, k=1)["by_grader"]
    assert rate(result["s"]) == [(1, 1), (0, 1)]
    assert rate(result["l"]) == [(0, 2), (1, 2)]
    assert beyond(HAND, k=2)["by_grader"] is None


def test_pivots_that_only_the_published_ranking_finds():
    topks = ([[7, -0.5], [8, -0.9]], [[8, -17.0], [9, -17.2], [7, 0.0]], [])
    records = [record(1, 1, 1, 0, i, topk=topk) for i, topk in enumerate(topks)]
    found = beyond(records, k=1)["only_published_ranking"]
    assert found == {"n": 2, "count": 1, "share": 0.5}
    assert beyond(HAND, k=2)["only_published_ranking"] == {"n": 0, "count": 0, "share": None}


def test_no_records(quick):
    result = beyond([], k=4)
    json.dumps(result, allow_nan=False)
    assert {i["undefined"] for i in result["intervals"].values()} == {"no denominator"}
    assert {t["p"] for t in result["tests"].values()} == {None}
    assert result["by_offset"] == result["by_margin_decile"] == []
    assert result["detectable_excess"] == {"n_problems": 0, "sd": None, "excess": None}


def test_one_problem():
    result = beyond([record(1, 1, 1, 0), record(1, 1, 1, 1, 1)], k=1)
    assert result["intervals"]["excess"]["undefined"] == "one problem"
    assert result["tests"]["sign_flip"]["p"] == 1.0
    assert result["detectable_excess"]["excess"] is None


def test_a_floor_above_the_refeed_explains_more_than_all():
    share = beyond([record(1, 1, 0, 1), record(2, 1, 0, 0)], k=1)["intervals"]["floor_share"]
    assert share["estimate"] == 2.0


@given(runs())
@settings(max_examples=25)
def test_any_run_gives_json_with_overlaps_in_range(run):
    k, records = run
    result = beyond(records, k)
    json.dumps(result, allow_nan=False)
    assert [p["threshold"] for p in result["jaccard_curve"]] == [j / k for j in range(1, k + 1)]
    for point in result["jaccard_curve"]:
        for name in ("refeed", "replica"):
            values = [point[name]["estimate"], *(point[name]["ci95"] or [])]
            assert all(value is None or 0 <= value <= 1 for value in values)


@given(runs())
@settings(max_examples=15)
def test_identical_passes_have_overlap_one_and_no_p(run):
    k, records = run
    result = beyond(with_passes(records, "exact1", "exact1", "exact1"), k)
    assert all(
        p[n]["estimate"] in (1.0, None) for p in result["jaccard_curve"] for n in p if n[0] == "r"
    )
    assert {t["p"] for t in result["tests"].values()} == {None}


@given(runs())
@settings(max_examples=15)
def test_swapping_the_compared_passes_swaps_their_statistics(run):
    k, records = run
    one, other = beyond(records, k), beyond(with_passes(records, "exact1", "refeed", "exact2"), k)
    assert one["intervals"]["refeed_rate"] == other["intervals"]["floor_rate"]
    assert one["intervals"]["refeed_jaccard"] == other["intervals"]["replica_jaccard"]
    assert one["tests"] == other["tests"]


@given(runs())
@settings(max_examples=15)
def test_order_of_records_does_not_matter(run):
    k, records = run
    assert beyond(records[::-1], k) == beyond(records, k)


def published(shared, *names):
    records, k = pool(*(shared / "published" / f"{name}.json" for name in names))
    return analyze(records, k) | beyond(records, k)


def test_published_main_configuration(shared):
    result = published(shared, "campaign2_primary", "campaign2_screened")
    low, high = result["intervals"]["excess"]["ci95"]
    assert 0.11 < low < 0.13 and 0.25 < high < 0.28
    assert result["tests"]["sign"] == {"p": pytest.approx(3.86e-5, rel=0.01), "n": 34}
    assert result["tests"]["sign_flip"]["method"] == "exact"
    assert [g["offset"] for g in result["by_offset"]] == [0, 1, 2]
    for groups in (result["by_offset"], result["by_margin_decile"]):
        assert [sum(g["refeed"][key] for g in groups) for key in ("n", "flips")] == [636, 215]
    assert [p["threshold"] for p in result["jaccard_curve"]] == [0.25, 0.5, 0.75, 1.0]
    # The t of Table 1 is 5.51: the same data, the same standard deviation.
    excess = result["clustered"]["t"] * result["detectable_excess"]["sd"] / 40**0.5
    assert excess == pytest.approx(result["clustered"]["mean_excess"])


def test_published_batch_invariant_configuration(shared):
    result = published(shared, "campaign2_batchinv")
    for name, interval in result["intervals"].items():
        expected = "no denominator" if name == "floor_share" else "no variance"
        assert (interval["ci95"], interval["undefined"]) == (None, expected)
    assert result["detectable_excess"]["sd"] == 0.0
