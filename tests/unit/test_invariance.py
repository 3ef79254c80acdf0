"""The self-check's four questions, asked of engines whose one fault is known."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine import Completion, EngineError
from replay.invariance import Sequence, Size, _prefilled, check_engine, compare, verdict

PROMPTS = [[1, 2, 3, 4], [9, 8, 7, 6, 5, 4]]
SIZE = Size(prompts=2, copies=3, tokens=8)
QUESTIONS = ["repetition", "warm cache", "batch size", "prefill"]
FAULTY_FROM = 9  # tokens before the predicted one: position 5 of the first prompt, 3 of the second
DELTA = 0.125


class Function:
    """An engine that is a function of a request, but for the fault of a subclass."""

    def __init__(self):
        self.cold = True
        self.batches = []  # of each run: whether it was cold, and its prompts

    def fault(self, step: int) -> float:
        """Nats by which the logprobs of this step of a request of the latest run are off."""
        return 0.0

    def sampled(self, *, temperature, max_tokens, seed, **_):
        return SimpleNamespace(tokens=max_tokens, seed=seed if temperature else None)

    def greedy(self, *, max_tokens, **_):
        return SimpleNamespace(tokens=max_tokens, seed=None)

    def reset(self):
        self.cold = True

    def generate(self, prompts, parameters):
        self.batches.append((self.cold, prompts))
        completions = [self.complete(*pair) for pair in zip(prompts, parameters, strict=True)]
        self.cold = False
        return completions

    def complete(self, prompt, parameters):
        tokens, logprobs = [], []
        for step in range(parameters.tokens):
            context = prompt + tokens
            drawn = random.Random(str(context))
            top = {drawn.randrange(1000): -float(rank) for rank in range(1, 6)}
            if len(context) >= FAULTY_FROM:
                top = {token: value - self.fault(step) for token, value in top.items()}
            if parameters.seed is None:
                tokens.append(max(top, key=top.get))
            else:
                tokens.append(random.Random(f"{context}{parameters.seed}").choice(list(top)))
            logprobs.append(top)
        return Completion(tokens, "length", logprobs, 0, 0, [])


class Noisy(Function):
    def fault(self, step):
        return DELTA * len(self.batches)


class CacheDependent(Function):
    def fault(self, step):
        return 0.0 if self.cold else DELTA


class BatchDependent(Function):
    def fault(self, step):
        return DELTA if len(self.batches[-1][1]) > 1 else 0.0


class DecodesByBatch(BatchDependent):
    def fault(self, step):
        return super().fault(step) if step else 0.0


class PrefillsByBatch(BatchDependent):
    def fault(self, step):
        return 0.0 if step else super().fault(step)


class PrefillDependent(Function):
    def fault(self, step):
        return 0.0 if step else DELTA


def test_an_invariant_engine_passes_every_question():
    checks = check_engine(Function(), PROMPTS, SIZE)
    assert [check.name for check in checks] == QUESTIONS
    assert verdict(checks) == "invariant"
    # All requests twice; greedy ones decoded and prefilled; greedy ones.
    assert [check.sequences for check in checks] == [6, 6, 4, 2]
    for check in checks:
        assert check.passed and check.first is None and check.max_delta == 0
        assert check.identical == check.sequences
        assert check.equal == check.positions == check.sequences * SIZE.tokens


@pytest.mark.parametrize(
    ("engine", "failed"),
    [
        (Noisy, QUESTIONS),
        (CacheDependent, ["warm cache"]),
        (BatchDependent, ["batch size"]),
        (DecodesByBatch, ["batch size"]),
        (PrefillsByBatch, ["batch size"]),
        (PrefillDependent, ["prefill"]),
    ],
)
def test_a_fault_fails_its_questions_and_no_other(engine, failed):
    checks = check_engine(engine(), PROMPTS, SIZE)
    assert [check.name for check in checks if not check.passed] == failed
    assert verdict(checks) == f"not invariant: {', '.join(failed)}"


@pytest.mark.parametrize(
    ("engine", "question", "counts"),
    [
        # Six positions of a sequence of the first prompt are compared, four of the second.
        (CacheDependent, "warm cache", (3 * 6 + 3 * 4, 3 * 5 + 3 * 3, 6)),
        (BatchDependent, "batch size", (2 * 6 + 2 * 4, 2 * 5 + 2 * 3, 4)),
        # Either half of the question finds its own: the other half has no difference.
        (DecodesByBatch, "batch size", (6 + 4 + 2 * 8, 5 + 3 + 2 * 8, 4)),
        (PrefillsByBatch, "batch size", (6 + 4 + 2 * 8, 5 + 3 + 2 * 8, 4)),
        (PrefillDependent, "prefill", (6 + 4, 5 + 3, 2)),
    ],
)
def test_the_first_difference_is_where_the_fault_begins(engine, question, counts):
    (check,) = (c for c in check_engine(engine(), PROMPTS, SIZE) if c.name == question)
    assert check.first["sequence"] == "1.0" and check.first["position"] == 3
    assert check.first["delta"] == check.max_delta == DELTA
    assert check.first["tokens"][0] == check.first["tokens"][1]
    assert (check.positions, check.equal, check.sequences) == counts
    assert check.sequences - check.identical == check.positions - check.equal


def test_only_the_warm_run_is_warm():
    engine = Function()
    check_engine(engine, PROMPTS, SIZE)
    assert [cold for cold, _ in engine.batches].count(False) == 1
    assert not engine.batches[1][0]


class Preempting(Function):
    """Its cache is too small for more than one request."""

    def complete(self, prompt, parameters):
        many = len(self.batches[-1][1]) > 1
        return replace(super().complete(prompt, parameters), preemptions=int(many))


def test_a_preempted_request_answers_nothing():
    with pytest.raises(EngineError, match=r"was preempted.*raise engine\.kv_cache_gib"):
        check_engine(Preempting(), PROMPTS, SIZE)


@pytest.mark.parametrize("together", [True, False])
def test_every_position_is_prefilled_from_what_was_decoded(together):
    """Cold, in one batch or each alone; the tokens stay those that were decoded."""
    engine = Function()
    decoded = [Sequence("a", [5, 6, 7], [{}] * 3), Sequence("b", [8], [{}])]
    prompts = [[1], [2, 3]]
    result = _prefilled(engine, list(zip(prompts, decoded, strict=True)), together)
    cuts = [[1], [1, 5], [1, 5, 6], [2, 3]]
    assert engine.batches == ([(True, cuts)] if together else [(True, [cut]) for cut in cuts])
    assert [(s.name, s.tokens) for s in result] == [("a", [5, 6, 7]), ("b", [8])]
    one = engine.greedy(max_tokens=1)
    expected = [engine.complete(cut, one).logprobs[0] for cut in cuts]
    assert [s.logprobs for s in result] == [expected[:3], expected[3:]]


def test_no_more_prompts_than_the_size_says():
    checks = check_engine(Function(), PROMPTS, SIZE._replace(prompts=1))
    assert [check.sequences for check in checks] == [3, 3, 2, 1]


def sequence(tokens, logprobs):
    return Sequence("s", tokens, logprobs)


def test_a_shorter_sequence_differs_where_it_ends():
    long, short = sequence([1, 2], [{1: 0.0}, {2: 0.0}]), sequence([1], [{1: 0.0}])
    check = compare("q", [(long, short)])
    assert (check.positions, check.equal, check.passed) == (2, 1, False)
    assert check.first == {"sequence": "s", "position": 1, "tokens": None, "delta": None}


def test_a_top_token_that_the_other_has_not_has_no_delta():
    one, other = sequence([1], [{1: -0.5}]), sequence([2], [{2: -0.5}])
    check = compare("q", [(one, other)])
    assert check.first["tokens"] == [1, 2] and check.first["delta"] is None
    assert check.max_delta == 0 and not check.passed


LOGPROBS = st.dictionaries(st.integers(0, 2), st.sampled_from([-2.0, -1.0, 0.0]), min_size=1)
POSITIONS = st.lists(st.tuples(st.integers(0, 1), LOGPROBS), min_size=1, max_size=5)
SEQUENCES = POSITIONS.map(lambda rows: sequence(*map(list, zip(*rows, strict=True))))
PAIRS = st.lists(st.tuples(SEQUENCES, SEQUENCES), max_size=6)


def first_difference(one, other):
    """Position of the first difference, None where there is none."""
    rows = [list(zip(s.tokens, s.logprobs, strict=True)) for s in (one, other)]
    length = max(map(len, rows))
    padded = [row + [None] * (length - len(row)) for row in rows]
    return next((i for i in range(length) if padded[0][i] != padded[1][i]), None)


@given(PAIRS)
def test_the_comparison_is_symmetric(pairs):
    """But for the delta, which is that of the first sequence's top token."""
    one, other = compare("q", pairs), compare("q", [(b, a) for a, b in pairs])
    for name in ("positions", "equal", "sequences", "identical", "passed"):
        assert getattr(one, name) == getattr(other, name)
    assert (one.first is None) == (other.first is None)
    if one.first:
        assert one.first["position"] == other.first["position"]
        tokens = other.first["tokens"]
        assert one.first["tokens"] == (tokens and tokens[::-1])


@given(PAIRS)
def test_the_first_difference_is_that_of_the_lowest_position(pairs):
    found = [d for pair in pairs if (d := first_difference(*pair)) is not None]
    check = compare("q", pairs)
    assert (check.first and check.first["position"]) == min(found, default=None)
    assert check.passed == (not found)


@given(st.lists(SEQUENCES, max_size=6))
def test_identical_sequences_pass(sequences):
    check = compare("q", [(s, s) for s in sequences])
    assert check.passed and check.first is None
    assert check.equal == check.positions == sum(len(s.tokens) for s in sequences)


@given(PAIRS)
def test_counts_add_up(pairs):
    check = compare("q", pairs)
    assert check.sequences == len(pairs)
    # Each sequence that is not identical has one compared position that is not equal.
    assert check.positions - check.equal == check.sequences - check.identical
    parts = [compare("q", [pair]) for pair in pairs]
    for name in ("positions", "equal", "identical"):
        assert getattr(check, name) == sum(getattr(part, name) for part in parts)
    assert check.max_delta == max((part.max_delta for part in parts), default=0)
