"""Word problems that a very small model solves now and then, for audits on a CPU.

A problem tells a story and states its calculation. `python -m replay.word_problems`, run in
workflow/scripts, rewrites the data file.
"""

import argparse
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.storage import write_jsonl

DATA_FILE = Path(__file__).parents[2] / "data" / "word-problems.jsonl"
SIZE = 400
SEED = 20260
SHARE_OF_STEPS = {1: 0.65, 2: 0.25, 3: 0.1}
NAMES = (
    "Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kira",
    "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Victor",
)  # fmt: skip
THINGS = (
    "apples", "balls", "books", "buttons", "cards", "coins", "cookies", "cups", "eggs", "flowers",
    "keys", "lemons", "marbles", "pears", "pencils", "pens", "shells", "stamps", "stickers", "toys",
)  # fmt: skip
OPERATIONS = {"+": operator.add, "-": operator.sub, "x": operator.mul}
# Small enough that the model often knows the result by heart; 1 would need the singular.
FIRST = {"+": range(2, 7), "-": range(4, 10), "x": range(2, 6)}
NEXT = {"+": range(2, 6), "-": range(2, 6), "x": range(2, 5)}


@dataclass(frozen=True)
class Template:
    """A wording. Its numbers a, b, c, d are joined by `operators`, from left to right.

    `{sum}` is the calculation as it is written in the text, `{ab}` and `{abc}` are the results of
    its first and second step. A product comes first, so that the written calculation means the
    same as the steps.
    """

    operators: str
    text: str


TEMPLATES = (
    Template("+", "{name} has {a} {things} and gets {b} more {things}. What is {sum}?"),
    Template("+", "{name} has {a} {things}. {friend} has {b} {things}. What is {sum}?"),
    Template("+", "There are {a} dogs and {b} cats in the park. What is {sum}?"),
    Template("+", "A box holds {a} red {things} and {b} blue {things}. What is {sum}?"),
    Template("+", "{name} finds {a} {things} and {friend} finds {b} {things}. What is {sum}?"),
    Template("+", "{name} walks {a} miles on Monday and {b} miles on Tuesday. What is {sum}?"),
    Template("+", "{a} boys and {b} girls play in the garden. What is {sum}?"),
    Template("+", "{name} reads {a} pages today and {b} pages tomorrow. How many pages is {sum}?"),
    Template("+", "{a} people are on a bus and {b} more people get on. What is {sum}?"),
    Template("+", "{name} plants {a} trees and {friend} plants {b} trees. How much is {sum}?"),
    Template(
        "+",
        "{name} has {a} {things} and finds {b} more, so {name} has {sum} {things}. How many "
        "{things} does {name} have?",
    ),
    Template(
        "+",
        "{name} puts {a} {things} on the table and {friend} puts {b} {things} next to them. The "
        "number of {things} on the table is {sum}. How many is that?",
    ),
    Template(
        "+",
        "{name} buys {a} {things} in the morning and {b} {things} in the afternoon. Add {a} and "
        "{b} to find how many {things} {name} bought.",
    ),
    Template("x", "There are {a} boxes with {b} {things} in each box. What is {sum}?"),
    Template("x", "{name} buys {a} bags. Every bag holds {b} {things}. What is {sum}?"),
    Template("x", "{a} tickets cost {b} dollars each. What is {sum}?"),
    Template("x", "{name} has {a} shelves with {b} {things} on each shelf. What is {sum}?"),
    Template("-", "{name} has {a} {things} and loses {b} of them. Subtract {b} from {a}."),
    Template("-", "{name} has {a} {things} and gives {b} of them to {friend}. What is {sum}?"),
    Template(
        "-",
        "There are {a} birds on a tree and {b} fly away. Subtract {b} from {a} to find how many "
        "birds are left.",
    ),
    Template(
        "++",
        "{name} has {a} red {things}, {b} blue {things} and {c} green {things}. What is {sum}?",
    ),
    Template("++", "{name} has {a} {things}, gets {b} more and finds {c} more. What is {sum}?"),
    Template(
        "++",
        "{name} has {a} {things} and gets {b} more. That makes {a} + {b} = {ab} {things}. Then "
        "{name} gets {c} more. What is {ab} + {c}?",
    ),
    Template(
        "+-",
        "{name} picks {a} {things} and {friend} picks {b}. Together they have {a} + {b} = {ab} "
        "{things}. They lose {c} of them. What is {ab} - {c}?",
    ),
    Template(
        "x+",
        "There are {a} boxes with {b} {things} in each box. That makes {a} x {b} = {ab} {things}. "
        "There are {c} more on the floor. What is {ab} + {c}?",
    ),
    Template(
        "+++",
        "{name} saves {a} dollars in May, {b} dollars in June, {c} dollars in July and {d} dollars "
        "in August. What is {sum}?",
    ),
    Template(
        "+++",
        "{name} has {a} {things} and gets {b} more. That makes {a} + {b} = {ab} {things}. {name} "
        "finds {c} more, which makes {ab} + {c} = {abc} {things}. Then {friend} gives {name} {d} "
        "more. What is {abc} + {d}?",
    ),
    Template(
        "++-",
        "{name} bakes {a} cakes, then {b} more, so there are {a} + {b} = {ab} cakes. {friend} "
        "brings {c} more, so there are {ab} + {c} = {abc} cakes. {d} of them are eaten. What is "
        "{abc} - {d}?",
    ),
)


def generate(n: int, seed: int) -> list[dict]:
    """`n` different problems: question, answer (int, at least 0), steps and expression.

    The expression is the calculation in Python's notation, with parentheses after every step.
    The same `n` and `seed` give the same problems. Raises ValueError where so many different ones
    are not found.
    """
    rng = random.Random(seed)
    problems: dict[str, dict] = {}
    for _ in range(20 * n):
        if len(problems) == n:
            break
        problem = _problem(rng)
        problems.setdefault(problem["question"], problem)
    if len(problems) < n:
        raise ValueError(f"{n} different problems were not found; ask for {len(problems)} or fewer")
    return list(problems.values())


def _problem(rng: random.Random) -> dict:
    steps = rng.choices(list(SHARE_OF_STEPS), list(SHARE_OF_STEPS.values()))[0]
    template = rng.choice([t for t in TEMPLATES if len(t.operators) == steps])
    numbers, totals = _numbers(rng, template.operators)
    name, friend = rng.sample(NAMES, 2)
    question = template.text.format(
        **dict(zip("abcd", numbers, strict=False)),
        **dict(zip(("ab", "abc"), totals[1:], strict=False)),
        sum=_written(template.operators, numbers),
        name=name,
        friend=friend,
        things=rng.choice(THINGS),
    )
    return {
        "question": question,
        "answer": totals[-1],
        "steps": steps,
        "expression": _expression(template.operators, numbers),
    }


def _numbers(rng: random.Random, operators: str) -> tuple[list[int], list[int]]:
    """Numbers for the operators, and the total after each; no step takes everything away."""
    numbers = [rng.choice(FIRST[operators[0]])]
    totals = numbers.copy()
    for symbol in operators:
        allowed = [n for n in NEXT[symbol] if OPERATIONS[symbol](totals[-1], n) > 0]
        numbers.append(rng.choice(allowed))
        totals.append(OPERATIONS[symbol](totals[-1], numbers[-1]))
    return numbers, totals


def _written(operators: str, numbers: Sequence[int]) -> str:
    first, *others = numbers
    return str(first) + "".join(f" {o} {n}" for o, n in zip(operators, others, strict=True))


def _expression(operators: str, numbers: Sequence[int]) -> str:
    expression, *others = map(str, numbers)
    for symbol, number in zip(operators.replace("x", "*"), others, strict=True):
        expression = f"({expression} {symbol} {number})"
    return expression


def main(arguments: Sequence[str] | None = None) -> None:
    """Write generated problems as JSON Lines."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--n", type=int, default=SIZE, help="number of problems (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed (%(default)s)")
    parser.add_argument("--out", type=Path, default=DATA_FILE, help="file to write")
    options = parser.parse_args(arguments)
    write_jsonl(options.out, generate(options.n, options.seed))


if __name__ == "__main__":
    main()
