"""Cohorts: windows and the difficulty screen. No engine."""

import pytest

from replay.config import Cohort, ConfigError
from replay.datasets import Problem
from replay.screen import candidates, cohort_report, fixed, scan

PROBLEMS = [Problem(i, f"question {i}", 1.0) for i in range(10)]
SCREENED = {"dataset": "d", "start": 2, "n": 2, "screen": {"scan_limit": 5, "grader": "strict"}}
FIXED = {"dataset": "d", "start": 2, "n": 3, "screen": None}


def rollouts(accuracies):
    """Trunk rows of four rollouts, as many right as the problem's entry says."""

    def of(problem):
        right = accuracies.get(problem.index, 0)
        return [
            {"text": f"Answer: {1 if i < right else 0}", "finish_reason": "stop"} for i in range(4)
        ]

    return of


def test_keeps_mixed_problems_until_enough_are_found():
    rejected = []
    found = rollouts({2: 4, 3: 1, 4: 0, 5: 3, 6: 2})
    looked_at = scan(PROBLEMS[2:7], found, rejected.append, 2, "strict")
    assert [problem.index for problem in rejected] == [2, 4]
    kept = [{key: entry[key] for key in ("index", "accuracy", "admitted")} for entry in looked_at]
    assert kept == [
        {"index": 2, "accuracy": 1.0, "admitted": False},
        {"index": 3, "accuracy": 0.25, "admitted": True},
        {"index": 4, "accuracy": 0.0, "admitted": False},
        {"index": 5, "accuracy": 0.75, "admitted": True},
    ]
    report = cohort_report(Cohort("c", SCREENED), looked_at)
    assert (report["found"], report["scanned"], report["note"]) == (2, 4, "")
    assert report["window"] == [2, 6]


def test_a_rejected_problem_says_why_none_of_its_rollouts_is_right():
    texts = [("Answer: 2", "stop"), ("I do not know.", "stop"), ("Answer: 1", "length")]
    rows = [{"text": text, "finish_reason": reason} for text, reason in [*texts, texts[1]]]
    (entry,) = scan(PROBLEMS[:1], lambda problem: rows, lambda problem: None, 1, "strict")
    assert (entry["accuracy"], entry["admitted"]) == (0.0, False)
    assert entry["outcomes"] == {"right": 0, "wrong": 1, "unparsed": 2, "truncated": 1}


def test_a_scan_that_runs_out_says_so():
    looked_at = scan(PROBLEMS[2:7], rollouts({3: 1}), lambda problem: None, 2, "strict")
    report = cohort_report(Cohort("c", SCREENED), looked_at)
    assert report["found"] == 1
    assert report["note"].startswith("scan limit reached: 1 of 2 problems")
    assert "5 scanned" in report["note"]


def test_a_fixed_window_takes_all():
    problems = candidates(Cohort("c", FIXED), PROBLEMS)
    assert [problem.index for problem in problems] == [2, 3, 4]
    report = cohort_report(Cohort("c", FIXED), fixed(problems))
    assert (report["found"], report["scanned"], report["screened"]) == (3, 0, False)
    assert {entry["outcomes"] for entry in report["problems"]} == {None}


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        (FIXED | {"start": 8}, r"window 8 to 10 passes the end of dataset d \(last index 9\)"),
        (SCREENED | {"start": 6}, r"lower cohorts\.c\.screen\.scan_limit"),
    ],
)
def test_a_window_past_the_end_names_the_key(cohort, message):
    with pytest.raises(ConfigError, match=message):
        candidates(Cohort("c", cohort), PROBLEMS)
