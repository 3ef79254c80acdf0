r"""Graders: the final number of a solution, and whether it is right (paper section 3.1).

`strict` reads the answer line that the prompt asks for, else \boxed{...}, else `#### n`, else a
sentence "the answer is n", else the last number. It ignores a next question that the model makes
up; text that the engine cut off is an outcome of its own. `published` follows the rules of the
paper's harness, which takes neither care. All patterns are linear in the text: whatever may have
to be read again is bounded or possessive.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Grade:
    """Outcome of one text (one of `protocol.OUTCOMES`) and the number found, None if none."""

    outcome: str
    answer: float | None

    @property
    def reward(self) -> int:
        """R of the paper's estimator (section 3.1): 1 for a right answer, else 0."""
        return int(self.outcome == "right")


@dataclass(frozen=True)
class Grader:
    """One way to read the final number of a text."""

    extract: Callable[[str], float | None]
    scope: str  # what to hand over: "continuation", or "solution" (with trunk and forced token)
    grades_truncated: bool  # whether text that the engine cut off is graded as it is


GRADERS: dict[str, Grader] = {}


def register(name: str, *, scope: str, grades_truncated: bool):
    """Decorator that makes a function from text to number (or None) the grader `name`."""

    def add(extract: Callable[[str], float | None]) -> Callable[[str], float | None]:
        GRADERS[name] = Grader(extract, scope, grades_truncated)
        return extract

    return add


def _grader(name: str) -> Grader:
    if name not in GRADERS:
        raise ValueError(f"unknown grader {name!r}: use one of {', '.join(GRADERS)}")
    return GRADERS[name]


def extract_answer(grader: str, text: str) -> float | None:
    """The final number of `text` by the named grader; ValueError for a name not registered."""
    answer = _grader(grader).extract(text)
    return answer if answer is not None and math.isfinite(answer) else None


def grade(grader: str, text: str, gold: float, finish_reason: str | None) -> Grade:
    """Grade `text` by exact match with `gold`, within `TOLERANCE` (paper section 3.1).

    Where the engine cut the text (`finish_reason` "length") and the grader does not grade such
    text, the outcome is "truncated" unless an answer line was completed before the cut.
    Raises ValueError for a grader name not registered.
    """
    if finish_reason == "length" and not _grader(grader).grades_truncated:
        if (text := _up_to_complete_answer(text)) is None:
            return Grade("truncated", None)
    answer = extract_answer(grader, text)
    if answer is None:
        return Grade("unparsed", None)
    return Grade("right" if abs(answer - gold) < TOLERANCE else "wrong", answer)


_CURRENCY = "$€£¥₹"
_MARKUP = [  # nothing here adds or takes a newline, so that lines keep their numbers
    (r"(?=[¼-¾])", " "),
    (r"[！-～¼-¾]", lambda wide: unicodedata.normalize("NFKC", wide[0])),
    (r"[^\S\n]|~", " "),
    (r"[\u200b\u2060\ufeff`]|\\!", ""),  # 1,\!234
    (r"[\u2010-\u2013\u2212]", "-"),
    (r"\{,\}", ","),  # 1{,}234
    (r"\\([$%#&_])", r"\1"),
    (r"(?<=[0-9]) *(?=\\[dtc]?frac)", " "),  # 2\frac{1}{2}
    (r"\\[dtc]?frac *(?:\{([^{}]*)\}|([0-9])) *(?:\{([^{}]*)\}|([0-9]))", r"\1\2/\3\4"),
    (r"\\(?:times|cdot|div)(?![A-Za-z])", "×"),  # all that matters is that it is arithmetic
    (r"\\approx(?![A-Za-z])|[≈→]|\bequals\b|(?<=[0-9] )(?:is|gives|makes)(?= \W{0,2}[0-9])", "="),
    (r"\\(?:[A-Za-z]+|.)", " "),  # \text, \boxed, \( and the like; what they enclose stays
    (r"(?<=[\w)}%])( ?)\*{1,2}\1(?=[\w($.{-])", "×"),  # other stars are markdown
    (r"[*{}\\]|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])", ""),
    (rf"(?:\A|(?<=[=:])) *([-+]) +(?=[{_CURRENCY}.0-9])", r"\1"),  # = - 5
]
_NUMBER = rf"""
    (?:(?<![\w)])(?P<sign>[-+])(?=[{_CURRENCY}.0-9]))?      # -5 and -$5
    (?:[{_CURRENCY}]{{1,3}}\ ?(?P<late_sign>[-+])?)?        # $-5
    (?:(?P<whole>[0-9]++)\ (?=[0-9]++\ ?[/⁄]\ ?[0-9]))?     # the 2 of 2 1/2
    (?P<top>(?:[0-9]{{1,3}}(?:(?:,[0-9]{{3}})+|(?:\ [0-9]{{3}})+)(?![0-9])|[0-9]++)
            (?:\.[0-9]++)?|(?<!\w)\.[0-9]++)
    (?:\ ?[/⁄]\ ?(?P<bottom>[0-9]++(?:\.[0-9]++)?))?        # a slash makes a fraction
"""
_MORE = rf"""                                               # 5 apples + 3, 2(9), 4 x $5
    (?:\ ?[A-Za-z°]{{1,15}}){{0,2}}?[\ )%{_CURRENCY}]{{0,4}}
    (?:[-+×÷/^·]|(?<![A-Za-z])[xX](?![A-Za-z])|(?<=[0-9])\((?=[^A-Za-z()]{{1,40}}\))
        |\b(?:plus|minus|times|divided\ by|multiplied\ by)\b)
    [\ (]{{0,4}}[-+{_CURRENCY}]{{0,3}}\.?[0-9][0-9,.]*+
"""
_QUANTITY = re.compile(rf"{_NUMBER}(?P<more>(?:{_MORE})*+)", re.VERBOSE)  # a sum has `more`
_BEGINS_NUMBER = re.compile(rf"\W*(?:[A-Za-z]+\W+)?[-{_CURRENCY}]{{0,3}}\.?[0-9]")  # about $5
_LEAD_IN = re.compile(r"(?i)^\W*[A-Za-z].*?\b(?:is|are|was|be) +(?=\W{0,3}[0-9])")  # So it is 5
_ASIDE = re.compile(  # ends a statement once its number is given
    r"(?i)[,;](?![0-9])|[.!?](?=\s|$)|—|(?<=[^\s+×÷/^=(-])\s+[(\[]"
    r"|\s(?:because|since|so|as|which|where|if|for|after|when|given|and|but)\b"
)
_RUN_ON = re.compile(  # a next question or chat turn
    r"(?im)^[^\w\n]*(?:(?:next|new|another|similar|bonus|follow-?up|practice)[ -])?"
    r"(?:(?:question|problem|exercise)[ #*_(]{0,4}"
    r"(?:[0-9]+ ?[-.):–—]|[0-9]*[ *_)\]]{0,4}(?:[:：]|$))|q ?[0-9]*[ *_]{0,4}(?:[:：]|\. )"
    r"|(?:user|human|assistant|system|instructions?)[ *_]{0,4}(?:[:：]|$))"
    r"|<\|[A-Za-z_]+\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>"
)
_LABEL = re.compile(  # Answer: 5 / ### Final Answer / **Answer 1:** 5 / Answer (in $) = 5
    r"(?i)\W*(?:[0-9]+[.)]\W*)?"
    r"(?:(?:so|thus|therefore|hence|finally|and|the|my|our|final|correct|exact|numeric(?:al)?)\W+)*"
    r"(?:answers?|ans)\b\.?(?:"
    r"(?: *\([^()]*\)| *#?[0-9]+(?=\W{0,4}:)| +(?:to|for|in|of)\b[^:=]{0,60})?"
    r"[\s\"'\])]*(?:(?:is|was|(?:will|would|should) be)\b *)?(?:[:=|]|[-=]+>|-(?=\s))"
    rf"|(?= +[-{_CURRENCY}]{{0,3}}\.?[0-9][^:=]*$)|\W*$)(?P<value>.*)"
)
_PLACEHOLDER = re.compile(
    r"(?i)\W*(?:(?:<[^<>0-9]*>|(?:the |your |final |insert )*(?:number|answer|value)\b)[^0-9]*)?"
)
_BRACED = r"[^{}\\]*+"
for _ in range(5):  # levels of braces within the box
    _BRACED = rf"(?:[^{{}}\\]++|\\.|\{{{_BRACED}\}})*+"
_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({_BRACED})\}}", re.DOTALL)
_FIRST = r"(?![^\w\n#]*[0-9]+[.):] +[A-Za-z])([^\w\n#]*[0-9].*)"  # no list item: 1. Find x
_HASHES = re.compile(r"#{4}(?!#)" + _FIRST)
_SENTENCE = re.compile(r"(?i)\banswers?\b[^\n.:=]{0,60}?(?:\b(?:is|was|be)\b|[:=])")


def parse_number(text: str) -> float | None:
    """A single number as people write it: 1,234  $5  −5  3/4  50% (as 50); else None."""
    return _to_float(_QUANTITY.fullmatch(_plain(text).strip().rstrip(f" .,%{_CURRENCY}")))


def _to_float(quantity: re.Match | None) -> float | None:
    if quantity is None or quantity["more"] or not (bottom := float(quantity["bottom"] or 1)):
        return None
    size = float(quantity["whole"] or 0) + float(re.sub("[, ]", "", quantity["top"])) / bottom
    return -size if "-" in (quantity["sign"], quantity["late_sign"]) else size


def _plain(text: str) -> str:
    """`text` without LaTeX and markdown, line by line."""
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    return text


def _first_solution(text: str) -> str:
    """`text` up to the next question or chat turn; one that opens it only restates the task."""
    cut = next((match.start() for match in _RUN_ON.finditer(text) if match.start()), None)
    return text if cut is None else text[:cut] + "\n"


def _answer_lines(lines: list[str]) -> list[tuple[int, str]]:
    """(index of the line that ends it, value) of each answer line; placeholders are skipped.

    A label alone on its line has its value on the next one, unless it heads a worked solution.
    """
    filled = [i for i, line in enumerate(lines) if re.search(r"\w", line)]
    found = []
    for i, following in pairwise([*filled, None]):
        if not (label := _LABEL.match(lines[i])):
            continue
        end, value = i, label["value"]
        if not re.search(r"\w", value):
            end, value = (i, "") if following is None else (following, lines[following])
            if end not in (i, filled[-1]) and ("=" in value or not re.match(_FIRST, value)):
                continue
        if not value or not _PLACEHOLDER.fullmatch(value):
            found.append((end, value))
    return found


def _up_to_complete_answer(text: str) -> str | None:
    """`text` up to the last answer line that a newline ends, whose number is therefore whole."""
    solution = _first_solution(text)
    lines = _plain(solution).split("\n")
    ends = [end for end, value in _answer_lines(lines) if value and end < len(lines) - 1]
    return "\n".join(solution.split("\n")[: ends[-1] + 1]) if ends else None


def _statement(solution: str) -> str:
    """The part of a solution that states its answer, by order of precedence."""
    text = _plain(solution)
    if lines := [value for _, value in _answer_lines(text.split("\n"))]:
        return next(filter(None, reversed(lines)), "")
    boxes = [box for box in map(_plain, _BOX.findall(solution)) if not _PLACEHOLDER.fullmatch(box)]
    if values := boxes or _HASHES.findall(text):
        return values[-1]
    if sentences := list(_SENTENCE.finditer(text)):
        text = text[sentences[-1].end() :]
        if _BEGINS_NUMBER.match(line := text.split("\n")[0]):
            return line
    return ["", *(match[0] for match in _QUANTITY.finditer(text) if not match["more"])][-1]


def _value(statement: str) -> float | None:
    """The first number of a statement or result of its equation; None for 20-2 and for words."""
    statement = _LEAD_IN.sub("", statement)
    if first := _QUANTITY.search(statement):
        aside = _ASIDE.search(statement, first.end())
        statement = statement[: aside.start()] if aside else statement
    for side in reversed(statement.split("=")):
        if (number := _to_float(_QUANTITY.search(side))) is not None:
            return number
    return None


@register("strict", scope="solution", grades_truncated=False)
def strict(text: str) -> float | None:
    """The number that the first solution of `text` states as its answer."""
    return _value(_statement(_first_solution(text)))


_FIGURE = r"(-?[0-9][0-9,]*(?:\.[0-9]+)?)"
_PUBLISHED = (
    rf"\\boxed\{{\s*(?:\$\s*)?{_FIGURE}\s*\}}",
    rf"(?i)answer\s*(?:[:=]\s*)?(?:\$\s*)?{_FIGURE}",
    r"(-?\$?[0-9][0-9,]*(?:\.[0-9]+)?)",
)


@register("published", scope="continuation", grades_truncated=True)
def published(text: str) -> float | None:
    """By the rules of the paper's harness: the last match of the first pattern that matches."""
    figures = next(filter(None, (re.findall(pattern, text) for pattern in _PUBLISHED)), None)
    return float(re.sub("[,$]", "", figures[-1])) if figures else None
