"""Graders of answers that are not numbers: letters, yes and no, LaTeX."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replay import latex
from replay.datasets import ANSWERS, DatasetError
from replay.grading import Grade, extract_answer, grade

QUESTION = "\n\nQuestion: Which one is a fish?\nA) cow\nB) cod\n"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        # An answer line
        ("Answer: B", "B"), ("Answer: (B)", "B"), ("Answer: B) Paris", "B"), ("Answer: b", "B"),
        ("**Answer:** B. Paris", "B"), ("Final answer: **B**", "B"), ("Answer: option B", "B"),
        ("Answer: The correct option is B.", "B"), ("Answer:\nB", "B"), ("Answer: [B]", "B"),
        ("Answer: B because A is too small", "B"), ("Answer: B Paris", "B"), ("Answer: I", "I"),
        ("Answer: A", "A"), ("Answer: A. A dog", "A"), ("ANSWER = (C)", "C"),
        # Several: the last; in one statement: none
        ("Answer: A\nWait.\nAnswer: B", "B"), ("The answer is A. No, the answer is C.", "C"),
        ("Answer: A or B", None), ("Answer: A and B", None), ("Answer: A, B", None),
        ("Answer: A/B", None), ("Answer: (A) or (B)", None),
        # No letter
        ("Answer: A dog", None), ("Answer: I think so", None), ("Answer: Paris", None),
        ("Answer: not B", None), ("Answer: <letter>", None), ("Answer:", None), ("", None),
        ("Answer: because B is larger", None), ("Answer: ß", None), ("Answer: Б", None),
        # A box, and a box in a box
        (r"\boxed{B}", "B"), (r"\boxed{\text{(B)}}", "B"), (r"\boxed{\boxed{B}}", "B"),
        (r"\boxed{A} no, \boxed{C}", "C"), (r"\boxed{B", "B"), (r"\boxed{}", None),
        # A sentence, or a letter that stands alone
        ("So the answer is (C).", "C"), ("The correct option is D.", "D"),
        ("The answer to the question is E) none", "E"), ("B", "B"), ("(b)", "B"), ("B.", "B"),
        ("B) Paris", "B"), ("It is a capital.\nB.", "B"), ("B. Of course B.", "B"),
        ("A) Rome\nB) Paris\nBoth are capitals.", None), ("I like it. A dog barks.", None),
        # What follows the first solution
        (f"Answer: A{QUESTION}Answer: B", "A"), ("Answer: A<|im_end|>\nAnswer: B", "A"),
    ],
)  # fmt: skip
def test_choice(text, letter):
    assert extract_answer("choice", text) == letter


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Answer: yes", "yes"), ("Answer: No.", "no"), ("**Answer:** YES", "yes"),
        ("Answer: Yes, there is no doubt", "yes"), ("Answer: true", "yes"),
        ("Answer: False", "no"), ("Answer: no it is not", "no"), ("Answer:\n\nno", "no"),
        ("Answer: yes\nWait.\nAnswer: no", "no"), ("Answer: yes or no", None),
        ("Answer: Yes/No", None), ("Answer: yes and no", None), ("Answer: maybe", None),
        ("Answer: <yes or no>", None), ("Answer: nothing", None), ("Answer: yesterday", None),
        (r"\boxed{\text{Yes}}", "yes"), (r"\boxed{\boxed{no}}", "no"),
        ("The answer is no.", "no"), ("So the answer is: yes", "yes"),
        ("Yes, a spider has eight legs.", "yes"), ("No. It has eight.", "no"), ("yes", "yes"),
        ("A spider has eight legs. So it is true.", None), ("There is no doubt.", None),
        ("Yes. But then, no. No.", None), ("Yes.\nNo.", None), ("No animals were harmed.", None),
        (f"Yes.{QUESTION}No.", "yes"), ("", None), ("ｙｅｓ", "yes"), ("Yes\u200b", "yes"),
    ],
)  # fmt: skip
def test_yes_no(text, label):
    assert extract_answer("yes-no", text) == label


@pytest.mark.parametrize(
    ("text", "gold", "outcome"),
    [
        (r"Answer: \frac{1}{2}", r"\frac{1}{2}", "right"), ("Answer: 0.5", r"\frac12", "right"),
        (r"Answer: $\frac{2}{4}$", "1/2", "right"), ("Answer: 2x+1", "1 + 2x", "right"),
        (r"**Answer:** $(3, \frac{\pi}{2})$", r"(3, \pi/2)", "right"),
        ("Answer: x = 5", "5", "right"), (r"\boxed{\frac{1}{3}}", r"\frac{1}{2}", "wrong"),
        ("Answer: −5", "-5", "right"),
        (r"\boxed{\boxed{7}}", "7", "right"), (r"\boxed{3}. No: \boxed{4}", "4", "right"),
        (r"\boxed{3}. No: \boxed{4}", "3", "wrong"), ("Answer: 3\nWait.\nAnswer: 4", "4", "right"),
        ("Hence $x^2 = 4$.\nSo the answer is $2$", "2", "right"),
        ("It is 18 apples.", "18", "right"),
        (f"Answer: 3{QUESTION}Answer: 4", "3", "right"), (r"Answer: 1,234", "1234", "right"),
        (r"Answer: \sqrt{2", r"\sqrt{2}", "unparsed"), (r"\boxed{}", "1", "unparsed"),
        ("", "1", "unparsed"), ("Answer: none", "1", "wrong"), ("no idea", "1", "unparsed"),
        ("Answer: " + "(" * 3000, "1", "unparsed"),
    ],
)  # fmt: skip
def test_math_verify(text, gold, outcome):
    assert grade("math-verify", text, gold, "stop").outcome == outcome


@pytest.mark.parametrize(
    ("grader", "gold", "label"),
    [("choice", "B", "B"), ("yes-no", "no", "no"), ("math-verify", r"\frac12", r"\frac{1}{2}")],
)
def test_text_that_the_engine_cut(grader, gold, label):
    for text in (
        "",
        "Let me",
        f"The answer is {label}.\nLet",
        f"Answer: {label}",
        rf"\boxed{{{label}}}",
    ):
        assert grade(grader, text, gold, "length") == Grade("truncated", None)
    for text in (
        f"Answer: {label}\n",
        f"Answer: {label}\nLet me check",
        f"Answer: {label}{QUESTION}",
    ):
        assert grade(grader, text, gold, "length") == Grade("right", label)


@given(st.sampled_from(string.ascii_uppercase), st.sampled_from(string.ascii_uppercase))
def test_every_letter_is_read_and_two_are_not(one, other):
    forms = [f"Answer: {one}", f"Answer: ({one.lower()})", rf"\boxed{{{one}}}", f"{one}) it"]
    assert [extract_answer("choice", form) for form in forms] == [one] * 4
    assert extract_answer("choice", f"Answer: {one} or {other}") is None


words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="aAqQ<[\\"), max_size=40
)


@given(words, st.sampled_from([("choice", "C"), ("yes-no", "no")]), words)
def test_an_answer_line_precedes_all_else(before, expected, after):
    grader, label = expected
    assert extract_answer(grader, f"{before}\nAnswer: {label}\n{after}") == label


@given(st.sampled_from(["choice", "yes-no"]), st.text(max_size=80), st.text(max_size=80))
@example("choice", "A?", "")
def test_a_run_on_question_changes_nothing(grader, text, run_on):
    alone = extract_answer(grader, text)
    assert extract_answer(grader, f"{text}\n\nQuestion: {run_on}") == alone


@given(st.text(alphabet=r"\{}$()^_+-=/,. 019xabfrcsqt", max_size=40))
def test_math_verify_takes_any_text(text):
    result = grade("math-verify", text, "18", "stop")
    assert (result.answer is None) == (result.outcome == "unparsed")


def test_a_formula_equals_itself():
    for text in (r"\frac{1}{2}", "x^2+1", r"\{1, 2\}", "(1, 2]", r"\sqrt{2}", "x = 5"):
        assert latex.read(text) and latex.equal(text, text)


@pytest.mark.parametrize(
    ("kind", "answer", "read"),
    [
        ("letter", "B", "B"), ("letter", " (b) ", "B"), ("letter", "C.", "C"),
        ("letter", "BC", None), ("letter", "", None), ("letter", 2, None), ("letter", "É", None),
        ("yes-no", "Yes", "yes"), ("yes-no", " NO ", "no"), ("yes-no", True, "yes"),
        ("yes-no", False, "no"), ("yes-no", "maybe", None), ("yes-no", 1, None),
        ("latex", r" \frac12 ", r"\frac12"), ("latex", 18, "18"), ("latex", 0.5, "0.5"),
        ("latex", " ", None), ("latex", None, None), ("latex", True, None),
        ("latex", float("nan"), None),
    ],
)  # fmt: skip
def test_gold_answers(kind, answer, read):
    if read is None:
        with pytest.raises(DatasetError, match="^answer "):
            ANSWERS[kind](answer)
    else:
        assert ANSWERS[kind](answer) == read
