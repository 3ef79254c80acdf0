"""The committed word problems are the generator's, and their answers are right."""

import ast
import json
import operator
import re

import pytest

from replay import word_problems
from replay.datasets import load_problems
from replay.word_problems import (
    DATA_FILE,
    SEED,
    SHARE_OF_STEPS,
    SIZE,
    TEMPLATES,
    Template,
    generate,
    main,
)

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return [json.loads(line) for line in DATA_FILE.read_text("utf-8").splitlines()]


def evaluate(node: ast.expr) -> int:
    """Value of an expression of integers; anything but +, - and * is a KeyError or an error."""
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](evaluate(node.left), evaluate(node.right))
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value


def calculation(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def test_the_committed_file_is_what_the_generator_writes(tmp_path):
    main(["--out", str(tmp_path / "again.jsonl")])
    assert (tmp_path / "again.jsonl").read_bytes() == DATA_FILE.read_bytes()


def test_the_file_is_a_dataset(rows):
    problems = load_problems(DATA_FILE, "number")
    assert len(problems) == SIZE
    assert [(p.question, p.answer) for p in problems] == [
        (row["question"], row["answer"]) for row in rows
    ]


def test_every_answer_is_the_value_of_its_expression(rows):
    for row in rows:
        assert evaluate(calculation(row["expression"])) == row["answer"]
        assert type(row["answer"]) is int and row["answer"] >= 0


def test_steps_count_the_operations(rows):
    for row in rows:
        nodes = ast.walk(calculation(row["expression"]))
        assert sum(isinstance(node, ast.BinOp) for node in nodes) == row["steps"]


def test_the_calculation_in_the_question_gives_the_answer(rows):
    """Read without the generator's parentheses: as written, products first."""
    written = re.compile(r"\d+(?: [-+x] \d+)+(?! [-+x=])")
    stated = 0
    for row in rows:
        if found := written.findall(row["question"]):
            stated += 1
            assert evaluate(calculation(found[-1].replace("x", "*"))) == row["answer"]
    assert stated > len(rows) / 2


def test_the_story_has_the_numbers_of_the_calculation(rows):
    for row in rows:
        story = re.findall(r"\d+", row["question"])
        for number in re.findall(r"\d+", row["expression"]):
            assert number in story


def test_questions_differ_and_leave_no_gap(rows):
    questions = [row["question"] for row in rows]
    assert len(set(questions)) == len(questions)
    assert not re.search(r"[{}]|  ", " ".join(questions))


def test_the_file_uses_every_wording_and_the_intended_mix_of_steps(rows):
    assert len(TEMPLATES) >= 20 and {len(t.operators) for t in TEMPLATES} == {1, 2, 3}
    for template in TEMPLATES:
        pattern = re.sub(r"\\{\w+\\}", r".+", re.escape(template.text))
        assert any(re.fullmatch(pattern, row["question"]) for row in rows), template.text
    for steps, share in SHARE_OF_STEPS.items():
        assert sum(r["steps"] == steps for r in rows) / SIZE == pytest.approx(share, abs=0.07)


def test_the_seed_alone_decides():
    assert generate(30, 1) == generate(30, 1) != generate(30, 2)
    assert generate(60, SEED)[:30] == generate(30, SEED)


def test_more_problems_than_there_are_is_an_error(monkeypatch):
    monkeypatch.setattr(word_problems, "TEMPLATES", (Template("-", "What is {sum}?"),))
    monkeypatch.setattr(word_problems, "SHARE_OF_STEPS", {1: 1.0})
    with pytest.raises(ValueError, match="100 different problems were not found"):
        generate(100, SEED)
