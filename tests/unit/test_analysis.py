"""Every statistic against values computed by hand, degenerate input, and the published records."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.analysis import analyze, pool

PUBLISHED = Path(__file__).parents[3] / "shared" / "published"


def record(problem, a1, a2, ar, position=0, margin=0.5, **fields):
    estimates = {"A_exact1": a1, "A_exact2": a2, "A_refeed": ar}
    key = {"problem_id": problem, "rollout": 0, "abs_pos": position}
    return key | {"margin": margin} | estimates | fields


# problem, exact1, exact2, refeed, margin; K = 2; the all-zero pivot is not eligible.
HAND = [
    record(problem, a1, a2, ar, position, margin)
    for position, (problem, a1, a2, ar, margin) in enumerate(
        [
            (1, 0.5, 0.5, 0.0, 0.1),
            (1, 0.5, 0.0, 0.5, 0.2),
            (1, -0.5, -0.5, 0.5, 0.5),
            (2, 0.0, 0.0, 1.0, 0.5),
            (2, 0.0, 0.5, 0.0, 0.3),
            (2, 1.0, 1.0, 1.0, 0.1),
            (3, 0.0, 0.0, 0.0, 0.1),
            (4, 0.5, 0.5, -0.5, 0.2),
        ]
    )
]


@pytest.fixture(scope="module")
def hand():
    return analyze(HAND, k=2)


def rates(n, flips, reversals):
    return {
        "n": n,
        "flips": flips,
        "flip_rate": pytest.approx(flips / n),
        "zero_crossings": flips - reversals,
        "polarity_reversals": reversals,
        "polarity_rate": pytest.approx(reversals / n),
    }


def test_counts(hand):
    assert (hand["n_records"], hand["n_problems"]) == (8, 4)
    assert hand["eligibility_sources"] == {
        "exact1_nonzero": 5,
        "only_refeed_nonzero": 1,
        "only_exact2_nonzero": 1,
    }


def test_sign_changes(hand):
    assert hand["common_set"] == {"refeed": rates(7, 4, 2), "floor": rates(7, 2, 0)}
    assert hand["exact1_conditioned"] == {"refeed": rates(5, 3, 2), "floor": rates(5, 1, 0)}


def test_margin_split_puts_its_bound_above(hand):
    assert hand["margin_lt_0.3"] == {"refeed": rates(4, 2, 1), "floor": rates(4, 1, 0)}
    assert hand["margin_ge_0.3"] == {"refeed": rates(3, 2, 1), "floor": rates(3, 1, 0)}


def test_bias(hand):
    half = 1.96 * math.sqrt(15) / 14  # mean 1/14, t 1/sqrt(15)
    assert hand["bias"] == {
        "mean_diff": pytest.approx(1 / 14),
        "t": pytest.approx(1 / math.sqrt(15)),
        "ci95": [pytest.approx(1 / 14 - half), pytest.approx(1 / 14 + half)],
        "n": 7,
    }


def test_mcnemar(hand):
    z = pytest.approx(2 / math.sqrt(6))
    assert hand["mcnemar"] == {"b_refeed_only": 4, "c_floor_only": 2, "z": z}


def test_clustered(hand):
    # Excesses 1/3, 0 and 1: mean 4/9, standard error sqrt(7)/9; two degrees of freedom.
    t = 4 / math.sqrt(7)
    half = 4.302652729749464 * math.sqrt(7) / 9
    assert hand["clustered"] == {
        "n_problems": 3,
        "mean_excess": pytest.approx(4 / 9),
        "t": pytest.approx(t),
        "p": pytest.approx(1 - t / math.sqrt(t**2 + 2)),
        "ci95": [pytest.approx(4 / 9 - half), pytest.approx(4 / 9 + half)],
        "problems_refeed_worse": 2,
        "problems_floor_worse": 0,
        "problems_equal": 1,
    }


def test_selection(hand):
    assert hand["critical_token_jaccard"] == {
        "thr_0.5": {
            "n_exact1": 5,
            "refeed_vs_exact1": pytest.approx(4 / 6),
            "refeed_disagreements": 2,
            "refeed_within_quantum": 2,
            "replica_vs_exact1": pytest.approx(4 / 6),
            "replica_disagreements": 2,
            "replica_within_quantum": 2,
        },
        "thr_0.75": {
            "n_exact1": 1,
            "refeed_vs_exact1": 0.5,
            "refeed_disagreements": 1,
            "refeed_within_quantum": 1,
            "replica_vs_exact1": 1.0,
            "replica_disagreements": 0,
            "replica_within_quantum": 0,
        },
    }


def test_selection_disagreement_far_from_the_threshold():
    selection = analyze([record(1, 0.0, 1.0, 1.0)], k=8)["critical_token_jaccard"]["thr_0.5"]
    assert (selection["refeed_disagreements"], selection["refeed_within_quantum"]) == (1, 0)


@pytest.mark.parametrize("k", [3, 5, 6, 7, 10])
def test_float_noise_neither_changes_a_sign_nor_a_selection(k):
    above, below = math.ceil(k / 2) / k, math.floor(k / 2) / k
    noisy = [record(1, above - 1e-12, above, above), record(1, 1e-12, 0.0, -1e-12, 1)]
    noisy.append(record(1, below + 1e-12, below, below, 2))
    result = analyze(noisy, k)
    assert result["common_set"]["refeed"] == rates(2, 0, 0)
    assert result["critical_token_jaccard"]["thr_0.5"]["n_exact1"] == (2 if k % 2 == 0 else 1)
    assert result["identity"]["refeed"]["estimates"]["share"] == 1.0


def probes(delta, lp1=-0.5, lp2=-0.5, diverged=False):
    """Probe fields in which both compared passes have the same values."""
    fields = {"greedy_first_exact1": {"actual": [7, lp1], "alt": [8, lp1]}}
    for name in ("exact2", "refeed"):
        fields[f"greedy_first_{name}"] = {"actual": [7, lp2], "alt": [8, lp2]}
        fields[f"greedy_first_logprob_delta_{name}"] = delta
        fields[f"greedy_divergence_{name}"] = diverged
    return fields


def test_probes():
    deltas = [0.0, 0.4, 0.0, 0.2, 0.0, 0.1, 0.3, 0.0]
    records = [record(1, 0, 0, 0, i, **probes(d)) for i, d in enumerate(deltas)]
    records.append(record(1, 0, 0, 0, 8, **probes(0.0, lp1=0.0, lp2=-0.0)))
    records.append(record(1, 0, 0, 0, 9, **probes(0.5, lp1=0.0, lp2=-0.5, diverged=True)))
    records.append(record(1, 0, 0, 0, 10))
    result = analyze(records, k=1)["greedy_probe"]
    assert result["n_pivots"] == 10
    assert result["refeed"] == {
        "divergence_rate": 0.1,
        "bit_exact_rate": 0.5,
        "bit_exact_rate_decoded": None,
        "bit_exact_rate_unsaturated": pytest.approx(4 / 9),
        "n_saturated": 1,
        "p90_delta": 0.5,
        "median_nonzero_delta": 0.3,
    }


def test_probes_without_stored_logprobs_have_no_saturation():
    fields = {name: value for name, value in probes(0.0).items() if "first_exact" not in name}
    result = analyze([record(1, 0, 0, 0, **fields)], k=1)["greedy_probe"]["exact2"]
    assert result["bit_exact_rate"] == 1.0
    assert (result["bit_exact_rate_unsaturated"], result["n_saturated"]) == (None, None)


def test_cache_and_flags():
    clean = {"cache_ok_exact1": True, "cache_ok_exact2": True, "borrowed_blocks": 0}
    clean |= {f"preempted_{name}": False for name in ("exact1", "exact2", "refeed")}
    changes = [{}, {"cache_ok_exact2": False, "preempted_exact2": True}, {"preempted_refeed": True}]
    changes += [{"borrowed_blocks": 3}]
    records = [record(1, 0, 0, 0, i, **clean | change) for i, change in enumerate(changes)]
    records.append(record(1, 0, 0, 0, 4, cache_ok_exact1=None))
    assert analyze(records, k=1)["cache_instrumentation"] == {
        "n_instrumented": 4,
        "exact1_ok_rate": 1.0,
        "exact2_ok_rate": 0.75,
        "flagged": {
            "exact1_cache_miss": 0,
            "exact2_cache_miss": 1,
            "exact1_preempted": 0,
            "exact2_preempted": 1,
            "refeed_preempted": 1,
            "pivots_flagged": 2,
        },
        "pivots_with_borrowed_blocks": 1,
    }


def test_what_was_not_recorded_is_null_and_not_zero(hand):
    cache = hand["cache_instrumentation"]
    assert cache["n_instrumented"] == 0
    assert set(cache["flagged"].values()) == {None}
    assert cache["exact1_ok_rate"] is None and cache["pivots_with_borrowed_blocks"] is None
    assert hand["rates"] == dict.fromkeys(("exact1", "exact2", "refeed"))


def test_identity():
    equal = {f"probe_equal_{name}": True for name in ("exact2", "refeed")}
    equal |= {f"continuations_equal_{name}": 4 for name in ("exact2", "refeed")}
    other = equal | {"continuations_equal_refeed": 1, "probe_equal_refeed": False}
    records = [record(1, 0.5, 0.5, 0.5, 0, **equal), record(1, 0.5, 0.5, 0.0, 1, **other)]
    result = analyze(records, k=2)["identity"]
    assert result["exact2"]["all_identical"] is True
    assert result["refeed"]["all_identical"] is False
    assert result["refeed"]["continuations"] == {"n": 8, "identical": 5, "share": 0.625}
    assert result["refeed"]["probes"] == {"n": 2, "identical": 1, "share": 0.5}
    assert result["refeed"]["estimates"] == {"n": 2, "identical": 1, "share": 0.5}
    assert result["refeed"]["probe_sequences"] == {"n": 0, "identical": 0, "share": None}


def test_one_different_channel_ends_identity():
    result = analyze([record(1, 0, 0, 0, **probes(1e-7))], k=1)["identity"]["exact2"]
    assert result["estimates"]["share"] == 1.0 and result["all_identical"] is False


def test_outcomes():
    outcomes = {
        "exact1": {"actual": ["right", "right"], "alt": ["wrong", "truncated"]},
        "exact2": {"actual": ["right", "right"], "alt": ["unparsed", "right"]},
        "refeed": {"actual": ["truncated"] * 2, "alt": ["truncated"] * 2},
    }
    result = analyze([record(1, 1, 0.5, 0, outcomes=outcomes), record(1, 0, 0, 0, 1)], k=2)
    assert result["truncated"] == {"exact1": 0.25, "exact2": 0.0, "refeed": 1.0}
    assert result["rates"]["exact2"] == {
        "right": 0.75,
        "wrong": 0.0,
        "unparsed": 0.25,
        "truncated": 0.0,
    }


def test_unknown_outcome_is_refused():
    outcomes = {name: {"actual": ["rihgt"], "alt": []} for name in ("exact1", "exact2", "refeed")}
    with pytest.raises(ValueError, match=r"outcomes\.exact1 .*rihgt"):
        analyze([record(1, 0, 0, 0, outcomes=outcomes)], k=1)


def test_no_records():
    result = analyze([], k=4)
    json.dumps(result, allow_nan=False)
    assert result["n_records"] == result["n_problems"] == 0
    assert result["common_set"]["refeed"]["flip_rate"] is None
    assert result["bias"] == {"mean_diff": None, "t": None, "ci95": None, "n": 0}
    assert result["clustered"]["mean_excess"] is None
    assert result["greedy_probe"]["refeed"]["p90_delta"] is None
    assert result["identity"]["refeed"]["all_identical"] is None


def test_no_eligible_pivot():
    result = analyze([record(1, 0.0, 0.0, 0.0), record(2, 0.0, -0.0, 0.0)], k=4)
    assert result["common_set"]["floor"] == {
        "n": 0,
        "flips": 0,
        "flip_rate": None,
        "zero_crossings": 0,
        "polarity_reversals": 0,
        "polarity_rate": None,
    }
    assert result["mcnemar"]["z"] is None and result["clustered"]["t"] is None
    assert result["critical_token_jaccard"]["thr_0.5"]["refeed_vs_exact1"] is None
    assert result["identity"]["refeed"]["all_identical"] is True


def test_one_problem_has_no_clustered_t():
    clustered = analyze([record(1, 1, 1, 0), record(1, 1, 1, 1, 1)], k=1)["clustered"]
    assert (clustered["n_problems"], clustered["mean_excess"]) == (1, 0.5)
    assert clustered["t"] is clustered["p"] is clustered["ci95"] is None


def test_one_eligible_pivot_has_no_interval():
    bias = analyze([record(1, 0, 0, 1)], k=1)["bias"]
    assert bias == {"mean_diff": 1.0, "t": None, "ci95": None, "n": 1}


def test_equal_differences_have_no_t():
    # In floating point 0.3 - 0.1 is not 0.2.
    bias = analyze([record(1, 0.1, 0.1, 0.3), record(1, 0.0, 0.0, 0.2, 1)], k=10)["bias"]
    assert bias["t"] is None and bias["mean_diff"] == pytest.approx(0.2)


def test_equal_excess_on_every_problem_has_no_t():
    records = [
        record(problem, 1, 1, 0 if i == 0 else 1, i) for problem in range(10) for i in range(10)
    ]
    clustered = analyze(records, k=1)["clustered"]
    assert clustered["mean_excess"] == pytest.approx(0.1)
    assert clustered["t"] is None and clustered["problems_refeed_worse"] == 10


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(3, 0.3, 0, 0, 112), r"record 1 \(problem_id 3, .*112\): A_exact1 = 0.3 .* 1/4"),
        (record(3, 0, 0, 1.25), r"A_refeed = 1.25 is not a multiple"),
        (record(3, 0, None, 0), r"A_exact2 = nan is not a multiple"),
        (record(3, 0, 0, 0, margin=None), r"margin is missing"),
        ({"rollout": 0, "abs_pos": 1, "margin": 0.1}, r"problem_id is missing"),
        (record(1, 0, 0, 0), r"occurs twice"),
    ],
)
def test_malformed_record_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        analyze([record(1, 0, 0, 0), bad], k=4)


def test_k_below_one_is_refused():
    with pytest.raises(ValueError, match="k = 0"):
        analyze([], k=0)


def write(path, k, *records):
    path.write_text(json.dumps({"config": {"k": k}, "per_problem": [], "pivots": list(records)}))
    return path


def test_pool_keeps_the_first_of_two_records(tmp_path):
    one = write(tmp_path / "one.json", 2, record(1, 0.5, 0, 0), record(1, 1, 0, 0, 9))
    two = write(tmp_path / "two.json", 2, record(1, -0.5, 0, 0), record(2, 0, 0, 0))
    records, k = pool(one, two)
    assert k == 2
    assert [(r["problem_id"], r["abs_pos"], r["A_exact1"]) for r in records] == [
        (1, 0, 0.5),
        (1, 9, 1),
        (2, 0, 0),
    ]


def test_pool_refuses_files_of_different_k(tmp_path):
    files = [write(tmp_path / f"{k}.json", k) for k in (2, 4)]
    with pytest.raises(ValueError, match=r"share one K.*2\.json': 2.*4\.json': 4"):
        pool(*files)


def test_pool_names_a_file_that_holds_no_records(tmp_path):
    file = tmp_path / "other.json"
    file.write_text('{"config": {}}')
    with pytest.raises(ValueError, match=r"other\.json: not a records file, 'k' is missing"):
        pool(file)


@st.composite
def runs(draw):
    """K and records whose estimates lie anywhere on the grid of multiples of 1/K."""
    k = draw(st.integers(1, 5))
    unit = st.integers(-k, k)
    rows = draw(st.lists(st.tuples(st.integers(0, 3), unit, unit, unit), max_size=12))
    return k, [
        record(problem, *(value / k for value in units), position)
        for position, (problem, *units) in enumerate(rows)
    ]


def with_passes(records, exact1, exact2, refeed):
    """The records with each pass's estimate taken from the named pass."""
    sources = {"A_exact1": exact1, "A_exact2": exact2, "A_refeed": refeed}
    return [r | {name: r[f"A_{source}"] for name, source in sources.items()} for r in records]


@given(runs())
@settings(max_examples=40)
def test_result_is_json_without_nan(run):
    k, records = run
    json.dumps(analyze(records, k), allow_nan=False)


@given(runs())
@settings(max_examples=40)
def test_identical_passes_disagree_nowhere(run):
    k, records = run
    result = analyze(with_passes(records, "exact1", "exact1", "exact1"), k)
    for side in result["common_set"].values():
        assert side["flips"] == 0 and side["flip_rate"] in (0.0, None)
    for selection in result["critical_token_jaccard"].values():
        assert selection["refeed_vs_exact1"] == (1.0 if selection["n_exact1"] else None)
    assert result["mcnemar"]["z"] is None and result["clustered"]["t"] is None
    assert result["bias"]["t"] is None


@given(runs())
@settings(max_examples=40)
def test_swapping_the_compared_passes_swaps_their_columns(run):
    k, records = run
    one, other = analyze(records, k), analyze(with_passes(records, "exact1", "refeed", "exact2"), k)
    assert one["common_set"]["refeed"] == other["common_set"]["floor"]
    assert one["mcnemar"]["b_refeed_only"] == other["mcnemar"]["c_floor_only"]
    mirrored = -other["clustered"]["t"] if other["clustered"]["t"] is not None else None
    assert one["clustered"]["t"] == mirrored


@given(runs())
@settings(max_examples=40)
def test_disagreement_is_symmetric(run):
    k, records = run
    one, other = analyze(records, k), analyze(with_passes(records, "refeed", "exact2", "exact1"), k)
    assert one["common_set"]["refeed"] == other["common_set"]["refeed"]


@given(runs().flatmap(lambda run: st.tuples(st.just(run), st.permutations(run[1]))))
@settings(max_examples=40)
def test_order_of_records_does_not_matter(case):
    (k, records), shuffled = case
    assert analyze(shuffled, k) == analyze(records, k)


def published(*names):
    files = [PUBLISHED / f"{name}.json" for name in names]
    if not all(file.exists() for file in files):
        pytest.skip("the published records are not beside this checkout")
    return analyze(*pool(*files))


def percent(rate, digits=1):
    return round(100 * rate, digits)


def excess(sides):
    return percent(sides["refeed"]["flip_rate"] - sides["floor"]["flip_rate"])


def table_row(result):
    sides = [result["common_set"][name] for name in ("refeed", "floor")]
    rates = [percent(side[key]) for side in sides for key in ("flip_rate", "polarity_rate")]
    tests = [round(result["clustered"]["t"], 2), round(result["mcnemar"]["z"], 2)]
    return [sides[0]["n"], *rates, excess(result["common_set"]), *tests]


def test_published_main_configuration():
    """Paper, Table 1 row 1 and sections 3.2 and 5.1 to 5.3, at printed precision."""
    result = published("campaign2_primary", "campaign2_screened")
    assert result["n_records"] == 1567
    assert table_row(result) == [636, 33.8, 3.9, 15.1, 1.1, 18.7, 5.51, 8.61]
    assert excess(result["exact1_conditioned"]) == 11.7
    sources = result["eligibility_sources"]
    assert (sources["only_refeed_nonzero"], sources["only_exact2_nonzero"]) == (77, 18)
    clustered = result["clustered"]
    assert (clustered["problems_refeed_worse"], clustered["problems_floor_worse"]) == (29, 5)
    bias = result["bias"]
    assert (round(bias["mean_diff"], 3), round(bias["t"], 2)) == (-0.011, -1.23)
    assert [round(bound, 3) for bound in bias["ci95"]] == [-0.029, 0.006]
    margins = [result[f"margin_{name}_0.3"] for name in ("lt", "ge")]
    assert [percent(m["refeed"]["flip_rate"]) for m in margins] == [34.2, 33.6]
    assert [percent(m["floor"]["flip_rate"]) for m in margins] == [12.0, 16.9]
    selection = result["critical_token_jaccard"]["thr_0.5"]
    assert round(selection["refeed_vs_exact1"], 2) == 0.68
    assert round(selection["replica_vs_exact1"], 2) == 0.84
    for name in ("refeed", "replica"):
        assert selection[f"{name}_within_quantum"] == selection[f"{name}_disagreements"] > 0
    probe = result["greedy_probe"]
    assert percent(probe["refeed"]["divergence_rate"]) == 22.8
    assert percent(probe["exact2"]["divergence_rate"]) == 7.9
    assert f"{probe['exact2']['p90_delta']:.1e}" == "3.7e-03"
    assert f"{probe['refeed']['p90_delta']:.1e}" == "4.8e-02"
    assert result["cache_instrumentation"]["exact1_ok_rate"] == 1.0


def test_published_greedy_configuration():
    """Paper, Table 1 row 4 and sections 5.1 and 5.2."""
    result = published("campaign1_temp0")
    assert table_row(result) == [189, 40.2, 0.5, 13.8, 0.0, 26.5, 3.64, 5.66]
    assert excess(result["exact1_conditioned"]) == 11.9
    selection = result["critical_token_jaccard"]["thr_0.5"]
    assert round(selection["refeed_vs_exact1"], 2) == 0.59
    assert round(selection["replica_vs_exact1"], 2) == 0.83
    assert result["cache_instrumentation"]["n_instrumented"] == 0


def test_published_batch_invariant_configuration():
    """Paper, Table 1 row 7 and section 5.4."""
    result = published("campaign2_batchinv")
    assert result["n_records"] == 395
    for side in result["common_set"].values():
        assert (side["n"], side["flips"], side["flip_rate"]) == (106, 0, 0.0)
    selection = result["critical_token_jaccard"]["thr_0.5"]
    assert selection["refeed_vs_exact1"] == selection["replica_vs_exact1"] == 1.0
    assert all(result["identity"][name]["all_identical"] for name in ("exact2", "refeed"))
    assert result["clustered"]["t"] is None and result["mcnemar"]["z"] is None


def test_pivots_that_resume_only_the_prompt_are_counted():
    """Boundary at generated index gen_index - offset: -1 and 0 hold no decoded token, 1 does."""
    rows = [
        {
            "problem_id": 1, "rollout": 0, "abs_pos": position, "gen_index": gen_index,
            "offset": 1, "margin": 0.5, "A_exact1": float(position == 16), "A_exact2": 0.0,
            "A_refeed": 0.0, "greedy_first_logprob_delta_refeed": 0.0 if gen_index < 2 else 0.5,
        }
        for position, gen_index in ((16, 0), (32, 1), (48, 2))
    ]  # fmt: skip
    result = analyze(rows, 1)
    assert result["prompt_only"] == {"n": 2, "eligible": 1}
    assert result["greedy_probe"]["refeed"]["bit_exact_rate"] == pytest.approx(2 / 3)
    assert result["greedy_probe"]["refeed"]["bit_exact_rate_decoded"] == 0.0
    without = [{k: v for k, v in row.items() if k != "offset"} for row in rows]
    assert analyze(without, 1)["prompt_only"] == {"n": None, "eligible": None}
