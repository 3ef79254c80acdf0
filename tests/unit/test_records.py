"""Records and grades from small passes written by hand."""

import json

import pytest

from replay.grades import grade_pass, grade_solution, grade_trunks
from replay.protocol import ARMS, PASSES, PROBE
from replay.records import build, by_pivot, estimate, probe_comparison, shard_facts
from replay.storage import write_json

PIVOT = {
    "problem_id": 3, "cohort": "c", "rollout": 0, "gen_index": 1, "abs_pos": 17, "offset": 1,
    "margin": 0.5, "sampled_token": 5, "alternative_token": 6, "topk": [[5, -0.5], [6, -1.0]],
    "block_size": 16, "borrowed_blocks": 0, "block_owners": [0],
    "next_topk": [[1, -0.75], [2, -1.5]],
}  # fmt: skip
IDENTITY = {"problem_id": 3, "rollout": 0, "abs_pos": 17}


def completions(**changes):
    """Rows of one pass with K=2: token ids, cache hit and preemptions as on an undisturbed run."""
    rows = []
    for arm in ARMS:
        for k in (0, 1, PROBE):
            row = IDENTITY | {
                "arm": arm, "k": k, "seed": 1, "token_ids": [1, 2], "finish_reason": "stop",
                "num_cached_tokens": 16, "preemptions": 0, "resumed": True,
                "logprobs": [-0.25, 0.0] if k == PROBE else None,
            }  # fmt: skip
            rows.append(row | changes.get(f"{arm}_{k}", {}))
    return rows


def grades(actual, alt):
    return [
        IDENTITY
        | {
            "arm": arm,
            "k": k,
            "reward": reward,
            "outcome": "right" if reward else "wrong",
            "outcomes": {"strict": "right" if reward else "wrong"},
        }
        for arm, rewards in (("actual", actual), ("alt", alt))
        for k, reward in enumerate(rewards)
    ]


def records(raw=None, graded=None, pivot=PIVOT, order=PASSES):
    raw = {name: completions() for name in PASSES} | (raw or {})
    graded = {name: grades([1, 1], [1, 0]) for name in PASSES} | (graded or {})
    trunk_grades = [{"problem_id": 3, "rollout": r, "reward": r == 0} for r in range(2)]
    return build({"k": 2}, [pivot], trunk_grades, raw, graded, {3: list(order)})


def test_an_undisturbed_record():
    result = records(graded={"refeed": grades([0, 0], [1, 0])})
    (row,) = result["pivots"]
    assert (row["A_exact1"], row["A_exact2"], row["A_refeed"]) == (0.5, 0.5, -0.5)
    assert row["rollout_correct"] == 1 and row["flags"] == []
    assert row["cache_ok_exact1"] is row["cache_ok_exact2"] is True
    assert row["greedy_first_refeed"] == {"actual": [1, -0.25], "alt": [1, -0.25]}
    assert row["greedy_divergence_refeed"] is False
    assert row["greedy_first_logprob_delta_refeed"] == 0.0
    assert row["continuations_equal_refeed"] == 4 and row["probe_equal_refeed"] is True
    assert row["outcomes"]["refeed"] == {"actual": ["wrong"] * 2, "alt": ["right", "wrong"]}
    assert result["per_problem"] == [
        {
            "problem_id": 3,
            "pivots": 1,
            "rollouts": 2,
            "rollout_accuracy": 0.5,
            "cache_violations": {"exact1": 0, "exact2": 0},
            "pass_order": ["exact1", "exact2", "refeed"],
        }
    ]
    json.dumps(result, allow_nan=False)


def test_a_missed_cache_and_a_preemption_are_flagged():
    raw = {
        "exact1": completions(alt_0={"num_cached_tokens": 0}),
        "exact2": completions(actual_greedy={"preemptions": 1}),
    }
    result = records(raw)
    (row,) = result["pivots"]
    assert row["cache_ok_exact1"] is False and row["cache_ok_exact2"] is True
    assert row["cached_tokens_exact1"] == [0, 16]
    assert row["preempted_exact2"] is True and row["preempted_exact1"] is False
    assert row["flags"] == ["exact1_cache_miss", "exact2_preempted"]
    assert result["per_problem"][0]["cache_violations"] == {"exact1": 1, "exact2": 0}


def test_a_hit_on_other_than_the_restored_blocks_is_flagged():
    raw = {"exact2": completions(alt_1={"resumed": False})}
    assert records(raw)["pivots"][0]["flags"] == ["exact2_cache_miss"]


def test_a_cold_refeed_is_no_flag():
    raw = {
        "refeed": completions(
            **{f"{a}_{k}": {"num_cached_tokens": 0} for a in ARMS for k in (0, 1, PROBE)}
        )
    }
    assert records(raw)["pivots"][0]["flags"] == []


def test_further_passes_have_the_fields_of_the_three():
    order = ["prefill_warm", "refeed2", *PASSES]
    further = {"prefill_warm": completions(alt_0={"resumed": False}), "refeed2": completions()}
    result = records(further, {name: grades([1, 1], [1, 1]) for name in further}, order=order)
    (row,) = result["pivots"]
    assert row["A_prefill_warm"] == row["A_refeed2"] == 0 and row["A_refeed"] == 0.5
    assert row["cache_ok_prefill_warm"] is False and "cache_ok_refeed2" not in row
    assert row["flags"] == ["prefill_warm_cache_miss"]
    assert row["probe_equal_refeed2"] is True and set(row["outcomes"]) == set(order)
    assert result["per_problem"][0]["cache_violations"]["prefill_warm"] == 1
    assert result["per_problem"][0]["pass_order"] == order


def test_the_trunk_itself_is_what_fidelity_is_against():
    (row,) = records()["pivots"]
    assert row["trunk_delta_exact1"] == row["trunk_delta_refeed"] == 0.5  # -0.25 against -0.75
    other = completions(actual_greedy={"token_ids": [7, 2]}, alt_greedy={"token_ids": [1, 2]})
    (row,) = records({"refeed": other})["pivots"]
    assert row["trunk_delta_refeed"] is None and row["trunk_delta_exact2"] == 0.5
    (row,) = records(pivot=PIVOT | {"next_topk": None})["pivots"]
    assert row["trunk_delta_exact1"] is None and row["next_topk"] is None


def test_probe_delta_is_the_larger_of_the_two_arms_and_of_the_first_token():
    changed = completions(
        actual_greedy={"logprobs": [-0.5, 0.0]}, alt_greedy={"logprobs": [-0.25, -3.0]}
    )
    compared = probe_comparison(by_pivot(completions())[3, 0, 17], by_pivot(changed)[3, 0, 17])
    assert compared == {"divergence": False, "delta": 0.25, "equal": False}


def test_probe_divergence_is_any_token_on_any_arm():
    changed = completions(alt_greedy={"token_ids": [1, 3]})
    compared = probe_comparison(by_pivot(completions())[3, 0, 17], by_pivot(changed)[3, 0, 17])
    assert compared == {"divergence": True, "delta": 0.0, "equal": False}


def test_estimate_is_a_difference_of_means():
    assert estimate(by_pivot(grades([1, 0, 0, 1], [0, 0, 0, 1]))[3, 0, 17]) == 0.25


GRADING = {"grader": "strict", "scope": None}


def test_each_grader_reads_its_own_scope():
    graded = grade_solution("2 + 2\nAnswer: 4", "no number here", 4, "stop", GRADING)
    assert graded["outcomes"] == {"strict": "right", "published": "unparsed"}
    assert graded["reward"] == 1
    published = {"grader": "published", "scope": None}
    assert grade_solution("Answer: 4", "none", 4, "stop", published)["reward"] == 0
    assert (
        grade_solution("Answer: 4", "none", 4, "stop", published | {"scope": "solution"})["reward"]
        == 1
    )


def test_the_completed_solution_is_trunk_forced_token_and_continuation():
    words = {1: "Answer:", 2: " 1", 3: "2", 4: "9"}
    trunk = {"token_ids": [1, 2, 4], "prompt_token_ids": [0] * 10}
    row = {
        "problem_id": 3, "rollout": 0, "abs_pos": 12, "arm": "alt", "k": 0,
        "token_ids": [], "finish_reason": "stop",
    }  # fmt: skip
    (graded,) = grade_pass(
        [row, row | {"k": PROBE}],
        {(3, 0): trunk},
        {(3, 0, 12, "alt"): 3},
        {3: 12.0},
        lambda ids: "".join(words[i] for i in ids),
        GRADING,
    )
    assert graded["answers"]["strict"] == 12
    assert graded["reward"] == 1


@pytest.mark.parametrize(("reason", "outcome"), [("stop", "right"), ("length", "truncated")])
def test_a_truncated_trunk_is_its_own_outcome(reason, outcome):
    row = {"problem_id": 3, "rollout": 0, "text": "So it is 4", "finish_reason": reason}
    (graded,) = grade_trunks([row], {3: 4.0}, GRADING)
    assert graded["outcome"] == outcome


def test_an_empty_text_is_unparsed():
    row = {"problem_id": 3, "rollout": 0, "text": "", "finish_reason": "stop"}
    (graded,) = grade_trunks([row], {3: 4.0}, GRADING)
    assert (graded["outcome"], graded["reward"]) == ("unparsed", 0)
    assert set(graded["outcomes"].values()) == {"unparsed"}


def test_of_a_shard_its_engines_and_all_requests_of_its_passes(tmp_path):
    folders = [tmp_path / name for name in ("0-of-2", "1-of-2")]
    timed = {"exact1": 1.5, "refeed": 2.5}
    for folder, engines, problems in zip(folders, ([{"device": "cpu"}], []), (2, 0), strict=True):
        seconds = [{"problem_id": i, "requests": 10 + i} | timed for i in range(problems)]
        write_json(folder / "engine.json", engines)
        write_json(folder / "seconds.json", seconds)
    assert shard_facts([str(folder) for folder in folders]) == [
        {"shard": "0-of-2", "engines": [{"device": "cpu"}], "requests": 42},
        {"shard": "1-of-2", "engines": [], "requests": 0},
    ]
