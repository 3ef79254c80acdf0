"""Graders: rows of cases, truncation, the harness rules, and properties over arbitrary text."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.config import ConfigError, load_schema, read_config, validate
from replay.datasets import ANSWERS
from replay.grading import (
    GRADERS,
    TOLERANCE,
    Grade,
    extract_answer,
    grade,
    graders_of,
    parse_number,
    register,
)
from replay.protocol import OUTCOMES

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "data" / "grading_cases.tsv"
EXAMPLE = ROOT / "config" / "examples" / "yes-no.yaml"
SHARED = ROOT.parent / "shared" / "grading" / "cases.tsv"
REFERENCE_SOLUTIONS = ROOT.parent / "shared" / "gsm8k" / "test.jsonl"


def cases(path: Path) -> list[tuple[str, float | None]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            (
                json.loads(row["completion_tail_json"]),
                float(row["answer"]) if row["answer"] else None,
            )
            for row in rows
        ]


# Rows of cases


@pytest.mark.parametrize(("text", "answer"), cases(OWN), ids=repr)
def test_strict_reads_own_cases(text, answer):
    assert extract_answer("strict", text) == answer


def test_strict_reads_shared_cases():
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is absent: the shared cases come with the specification")
    read = [(text, extract_answer("strict", text)) for text, _ in cases(SHARED)]
    assert read == cases(SHARED)


def test_strict_reads_the_reference_solutions():
    if not REFERENCE_SOLUTIONS.exists():
        pytest.skip(f"{REFERENCE_SOLUTIONS} is absent: GSM8K is not part of the repository")
    for line in REFERENCE_SOLUTIONS.read_text(encoding="utf-8").splitlines():
        solution = json.loads(line)["answer"]
        gold = solution.rpartition("####")[2].strip()
        for text in (
            solution,
            solution.replace("####", "Answer:"),
            rf"{solution} \boxed{{{gold}}}",
        ):
            assert extract_answer("strict", text) == float(gold.replace(",", "")), text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234", 1234),
        ("1 234", 1234),
        ("1\u202f234\u202f567", 1234567),
        ("1{,}234", 1234),
        (r"1\,234.5", 1234.5),
        ("$5", 5),
        ("5 €", 5),
        ("−5", -5),
        ("- 5", -5),
        ("-$5", -5),
        ("$-5", -5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("3/4", 0.75),
        (r"-\frac{3}{4}", -0.75),
        ("2 1/2", 2.5),
        ("-2 1/2", -2.5),
        ("50%", 50),
        (r"50\%", 50),
        (" 18. ", 18),
        ("20-2", None),
        ("5/0", None),
        ("18 apples", None),
        ("eighteen", None),
        ("1,23", None),
        ("", None),
    ],
)
def test_parse_number(text, number):
    assert parse_number(text) == number


# The rules of the paper's harness


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{12} or \boxed{ $1,234.50 }. Answer: 7", 1234.5),
        (r"\boxed{-5}", -5),
        (r"\boxed{18 apples} and then 7", 7),  # a box must hold the number alone
        ("Answer: 12, then ANSWER = $18 for 2", 18),
        ("answer 18 of 20", 18),
        ("Answer: -5 of 20", -5),
        ("The answer is 18, so 3 of the 5 share it", 5),  # no word may stand between
        ("**Answer:** 18 (2 dozen minus 6)", 6),
        ("It costs $1,234.00", 1234),
        ("It costs 20-2", -2),
        ("a fee of -$5", -5),
        ("Answer: 18\n\nQuestion: 4 cars?\nAnswer: 12", 12),
        ("Answer: eighteen", None),
        ("", None),
    ],
)
def test_published_follows_the_harness(text, answer):
    assert extract_answer("published", text) == answer


def test_published_grades_cut_text_as_it_is():
    assert grade("published", "16 - 3 = 1", 1, "length") == Grade("right", 1)


# Outcomes


@pytest.mark.parametrize(
    ("text", "outcome", "answer"),
    [
        ("5 + 13 = 1", "truncated", None),
        ("5 + 13 = 18.\n", "truncated", None),
        (r"\boxed{18}" + "\nLet me", "truncated", None),
        ("The answer is 18.\nLet me", "truncated", None),
        ("Answer: 18", "truncated", None),  # may have become 180
        ("Answer:\n18", "truncated", None),
        ("Answer:\nJanet has 18 eggs.\nShe", "truncated", None),
        ("Answer: <number>\nLet me", "truncated", None),
        ("Answer: 18\n", "right", 18),
        ("**Answer:** 18\nLet me check", "right", 18),
        ("Answer:\n18\nLet me check", "right", 18),
        ("Answer: 12\nLet me check", "wrong", 12),
        ("Answer: 18\nWait.\nAnswer: 1", "right", 18),
        ("Answer: 12\nWait.\nAnswer: 18\nSo", "right", 18),
        ("Answer: eighteen\nLet me", "unparsed", None),
        ("Answer: 18\n\nQuestion: 4 cars?\nAnswer: 12\n\nQuest", "right", 18),
        ("Answer: 18<|im_end|>\n<|im_start|>user", "right", 18),
        ("5 + 13\n\nQuestion: 4 cars?\nAnswer: 18\nSo", "truncated", None),
        ("", "truncated", None),
    ],
)
def test_strict_on_text_that_the_engine_cut(text, outcome, answer):
    assert grade("strict", text, 18, "length") == Grade(outcome, answer)


@pytest.mark.parametrize("finish_reason", ["stop", None])
def test_whole_text_is_right_wrong_or_unparsed(finish_reason):
    assert grade("strict", "Answer: 18", 18, finish_reason) == Grade("right", 18)
    assert grade("strict", "Answer: 18", 19, finish_reason) == Grade("wrong", 18)
    assert grade("strict", "Answer: ?", 18, finish_reason) == Grade("unparsed", None)


def test_tolerance_is_that_of_rounding():
    assert grade("strict", "Answer: 0.33333", 1 / 3, "stop").outcome == "right"
    assert grade("strict", "Answer: 0.333", 1 / 3, "stop").outcome == "wrong"


@pytest.mark.parametrize(("outcome", "reward"), [*zip(OUTCOMES, (1, 0, 0, 0), strict=True)])
def test_only_a_right_answer_is_rewarded(outcome, reward):
    assert Grade(outcome, None).reward == reward


# The registry


def test_only_the_published_grader_reads_what_the_paper_s_harness_does():
    published = GRADERS["published"]
    assert (published.scope, published.grades_truncated) == ("continuation", True)
    for name in ("strict", "choice", "yes-no", "math-verify"):
        assert (GRADERS[name].scope, GRADERS[name].grades_truncated) == ("solution", False)


def test_every_kind_of_answers_has_a_grader():
    assert {grader.answers for grader in GRADERS.values()} == set(ANSWERS)


def test_a_new_grader_is_one_function(monkeypatch):
    numeric = graders_of("number")
    monkeypatch.setitem(GRADERS, "length", None)  # taken away again after the test

    @register("length", scope="continuation", grades_truncated=True)
    def length(text):
        return float(len(text))

    assert GRADERS["length"].extract is length
    assert graders_of("number") == [*numeric, "length"]
    assert grade("length", "abc", 3, "length") == Grade("right", 3)
    schema, config = load_schema.__wrapped__(), read_config(EXAMPLE)
    validate(config | {"grading": {"grader": "length"}}, schema)
    with pytest.raises(ConfigError, match="'lenient' is not one of 'strict'.*'length'"):
        validate(config | {"grading": {"grader": "lenient"}}, schema)


def test_a_new_kind_of_answers_is_one_function(monkeypatch):
    monkeypatch.setitem(ANSWERS, "colour", str)
    entry = {"source": "local", "path": "own.jsonl", "answers": "colour"}
    validate(read_config(EXAMPLE) | {"datasets": {"own": entry}}, load_schema.__wrapped__())


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_an_unknown_grader_is_named_with_the_allowed_ones(finish_reason):
    with pytest.raises(ValueError, match="'lenient'.*strict, published"):
        extract_answer("lenient", "Answer: 18")
    with pytest.raises(ValueError, match="'lenient'.*strict, published"):
        grade("lenient", "Answer: 18", 18, finish_reason)


# Properties

# A gold answer for each grader whose patterns are the project's own.
GOLD = {"strict": 18.0, "published": 18.0, "choice": "B", "yes-no": "yes"}
integers = st.integers(-(10**30), 10**30)
# Letters with which a label, a question or a chat token begins are left out.
working = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="aAqQ<[")),
        st.sampled_from(
            [r"\boxed{7}", "#### 7", "5 + 2 = 7", "\n", "The total is $7.", r"\frac{1}{", "**", "`"]
        ),
    ),
    max_size=8,
).map("".join)
anything = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            ["Answer", ":", " ", "\n", "18", "1,234", ".", "-", "$", "**", "=", "(", ")", "/", "%"]
            + [
                r"\boxed{",
                "}",
                "####",
                "is",
                "Question:",
                "<|im_end|>",
                r"\frac",
                "<number>",
                "9" * 400,
                "B",
                "(b)",
                "yes",
                "No",
                "or",
            ]
        ),
        max_size=30,
    ).map("".join),
)


@given(integers)
def test_an_integer_is_read_exactly(n):
    forms = [f"Answer: {n}", rf"\boxed{{{n}}}", f"#### {n}", f"**Answer:** ${n:,}", f"So {n}."]
    assert [extract_answer("strict", form) for form in forms] == [float(n)] * 5


@given(working, integers)
def test_what_precedes_the_answer_line_changes_nothing(before, n):
    assert extract_answer("strict", f"{before}\nAnswer: {n}") == float(n)


@given(
    anything,
    st.sampled_from(["Question:", "Question 2:", "Problem:", "Q:", "User:", "### Problem\n"]),
    anything,
)
def test_a_run_on_question_changes_nothing(text, marker, run_on):
    alone = extract_answer("strict", text)
    assert extract_answer("strict", f"{text}\n\n{marker} {run_on}") == alone


@given(st.sampled_from(sorted(GOLD)), anything, st.sampled_from(["stop", "length", None]))
def test_the_outcome_follows_from_the_answer(grader, text, finish_reason):
    gold = GOLD[grader]
    result = grade(grader, text, gold, finish_reason)
    equal = result.answer == gold
    if isinstance(gold, float) and result.answer is not None:
        equal = abs(result.answer - gold) < TOLERANCE
    assert (result.outcome == "right") == equal == bool(result.reward)
    assert (result.outcome in ("right", "wrong")) == (result.answer is not None)
    assert result.outcome in OUTCOMES and result.reward in (0, 1)
    if finish_reason != "length":
        assert result.answer == extract_answer(grader, text)
