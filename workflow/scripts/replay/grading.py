r"""Graders: the final answer of a solution, and whether it is right (paper section 3.1).

A grader reads one kind of answers, a key of `datasets.ANSWERS`. For numbers, `strict` reads the
answer line that the prompt asks for, else \boxed{...}, else `#### n`, else a sentence "the answer
is n", else the last number. It ignores a next question that the model makes up; text that the
engine cut off is an outcome of its own. `published` follows the rules of the paper's harness,
which takes neither care. `choice` (a letter), `yes-no` and `math-verify` (LaTeX) look for the
statement of the answer as `strict` does. All patterns are linear in the text: whatever may have to
be read again is bounded or possessive.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from replay import latex

TOLERANCE = 1e-4
Answer = float | str  # text for every kind but numbers


@dataclass(frozen=True)
class Grade:
    """Outcome of one text (one of `protocol.OUTCOMES`) and the answer found, None if none."""

    outcome: str
    answer: Answer | None

    @property
    def reward(self) -> int:
        """R of the paper's estimator (section 3.1): 1 for a right answer, else 0."""
        return int(self.outcome == "right")


def _equal(gold: Answer, answer: Answer) -> bool:
    """Numbers within `TOLERANCE`, text exactly."""
    return gold == answer if isinstance(gold, str) else abs(answer - gold) < TOLERANCE


@dataclass(frozen=True)
class Grader:
    """One way to read the final answer of a text."""

    extract: Callable[[str], Answer | None]
    scope: str  # what to hand over: "continuation", or "solution" (with trunk and forced token)
    grades_truncated: bool  # whether text that the engine cut off is graded as it is
    answers: str  # the kind of answers that it reads, a key of `datasets.ANSWERS`
    equal: Callable[[Answer, Answer], bool]  # whether the gold answer and the one found agree


GRADERS: dict[str, Grader] = {}


def register(
    name: str,
    *,
    scope: str,
    grades_truncated: bool,
    answers: str = "number",
    equal: Callable[[Answer, Answer], bool] = _equal,
):
    """Decorator that makes a function from text to answer (or None) the grader `name`."""

    def add(extract: Callable[[str], Answer | None]) -> Callable[[str], Answer | None]:
        GRADERS[name] = Grader(extract, scope, grades_truncated, answers, equal)
        return extract

    return add


def graders_of(answers: str) -> list[str]:
    """Names of the graders that read this kind of answers."""
    return [name for name, grader in GRADERS.items() if grader.answers == answers]


def _grader(name: str) -> Grader:
    if name not in GRADERS:
        raise ValueError(f"unknown grader {name!r}: use one of {', '.join(GRADERS)}")
    return GRADERS[name]


def extract_answer(grader: str, text: str) -> Answer | None:
    """The final answer of `text` by the named grader; ValueError for a name not registered."""
    answer = _grader(grader).extract(text)
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def grade(grader: str, text: str, gold: Answer, finish_reason: str | None) -> Grade:
    """Grade `text` by exact match with `gold` (paper section 3.1), as `datasets.ANSWERS` reads it.

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
    return Grade("right" if _grader(grader).equal(gold, answer) else "wrong", answer)


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


def _label_pattern(label: str) -> re.Pattern:
    """A statement that opens with a label; `other` tells that it names a second one: A or B."""
    lead_in = (
        r"(?:(?i:the|correct|right|best|it|it['’]s|is|option|choice|letter|answer)\W{1,4}){0,6}"
    )
    return re.compile(
        rf"\W{{0,8}}{lead_in}(?P<label>{label})"
        rf"(?P<other>\W{{0,4}}(?:(?i:or|and)\b|[/,&|])\W{{0,4}}{lead_in}(?:{label}))?"
    )


# No option: the article of "A dog", the pronoun of "I think". A small letter must stand alone.
_CHOICE = _label_pattern(r"\b(?:[A-Z](?!\w)(?!(?<=[AI])['’ ]+[a-z])|[a-z](?=\W*\Z))")
_YES_NO = _label_pattern(r"(?i:\b(?:yes|no|true|false)\b)")
_STATES = re.compile(
    r"(?i)\b(?:answers?|(?:correct|right|best) (?:option|choice))\b[^\n.:=]{0,60}?"
    r"(?:\b(?:is|was|be)\b|[:=])"
)
_BREAK = re.compile(r"[.!?:](?=\s|\Z)|\n")
_STANDS_ALONE = re.compile(r"\s*(?:[,.;:!)\]—–]|\Z)")


def _stated_label(text: str, pattern: re.Pattern) -> str | None:
    """The label that the first solution of `text` states, by `strict`'s order of precedence.

    Without an answer line, a box or a sentence "the answer is", a label that stands alone at the
    head of a sentence counts, unless another sentence has another one there.
    """
    solution = _first_solution(text)
    plain = _plain(solution)
    if lines := [value for _, value in _answer_lines(plain.split("\n"))]:
        return _opening(next(filter(None, reversed(lines)), ""), pattern)
    if boxes := _BOX.findall(solution):
        return _opening(_plain(boxes[-1]), pattern)
    if sentences := list(_STATES.finditer(plain)):
        return _opening(plain[sentences[-1].end() :].split("\n")[0], pattern)
    heads = {_opening(sentence, pattern, alone=True) for sentence in _BREAK.split(plain)} - {None}
    return heads.pop() if len({head.lower() for head in heads}) == 1 else None


def _opening(statement: str, pattern: re.Pattern, alone: bool = False) -> str | None:
    """The label with which a statement opens; None if it opens with none, or names two."""
    found = pattern.match(statement)
    if not found or found["other"] or alone and not _STANDS_ALONE.match(statement, found.end()):
        return None
    return found["label"]


@register("choice", scope="solution", grades_truncated=False, answers="letter")
def choice(text: str) -> str | None:
    """The letter of the option that the first solution of `text` chooses: B, (B), option B."""
    label = _stated_label(text, _CHOICE)
    return label and label.upper()


@register("yes-no", scope="solution", grades_truncated=False, answers="yes-no")
def yes_no(text: str) -> str | None:
    """What the first solution of `text` says, yes or no; true counts as yes, false as no."""
    label = _stated_label(text, _YES_NO)
    return label and ("yes" if label.lower() in ("yes", "true") else "no")


@register(
    "math-verify", scope="solution", grades_truncated=False, answers="latex", equal=latex.equal
)
def math_verify(text: str) -> str | None:
    """The formula that the first solution of `text` states, as LaTeX that math-verify can read."""
    found = latex.read(_formula(_first_solution(text)))
    return found[-1] if found else None


def _formula(solution: str) -> str:
    """The answer line, else the last box, else the last line with a formula or a figure."""
    lines = solution.split("\n")
    if ends := [end for end, value in _answer_lines(_plain(solution).split("\n")) if value]:
        line = lines[ends[-1]]
        label = _LABEL.match(line)
        return (label["value"] if label else line).strip(" *")
    if boxes := _BOX.findall(solution):
        return boxes[-1]
    return next((line for line in reversed(lines) if re.search(r"[0-9$\\]", line)), "")
