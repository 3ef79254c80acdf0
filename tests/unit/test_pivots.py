"""Pivot selection (paper section 3.1), against cases worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from replay.pivots import ranked, select_pivots

SURE = [(1, -0.1), (2, -3.0)]  # margin 2.9: no decision
CLOSE = [(1, -0.7), (2, -0.9)]  # margin 0.2


def positions(topk, tokens=None, prompt_length=0, **options):
    tokens = tokens or [candidates[0][0] for candidates in topk]
    settings = {"block_size": 16, "special_tokens": set()} | options
    return [p.abs_pos for p in select_pivots(tokens, topk, prompt_length, **settings)]


def test_only_just_past_a_block_boundary():
    assert positions([CLOSE] * 40) == [0, 1, 2, 16, 17]
    assert positions([CLOSE] * 40, max_per_rollout=9) == [0, 1, 2, 16, 17, 18, 32, 33, 34]
    assert positions([CLOSE] * 40, boundary_slack=0) == [0, 16, 32]
    assert positions([CLOSE] * 40, prompt_length=10) == [16, 17, 18, 32, 33]
    assert positions([CLOSE] * 70, block_size=32) == [0, 1, 2, 32, 33]


def test_margin_is_strictly_below_the_limit():
    exactly_one = [(1, -0.25), (2, -1.25)]
    assert positions([exactly_one]) == []
    assert positions([exactly_one], margin_lt=1.01) == [0]
    assert positions([SURE]) == []


def test_alternative_is_the_best_token_other_than_the_sampled_one():
    (top,) = select_pivots([1], [CLOSE], 0, block_size=16, special_tokens=set())
    (second,) = select_pivots([2], [CLOSE], 0, block_size=16, special_tokens=set())
    outside = [*CLOSE, (9, -5.0)]  # the sampled token is kept even where it is not in the top k
    (other,) = select_pivots([9], [outside], 0, block_size=16, special_tokens=set())
    assert (top.sampled_token, top.alternative_token) == (1, 2)
    assert (second.sampled_token, second.alternative_token) == (2, 1)
    assert (other.sampled_token, other.alternative_token) == (9, 1)


def test_special_tokens_are_no_decision():
    assert positions([CLOSE], special_tokens={2}) == []
    assert positions([CLOSE], special_tokens={1}) == []
    assert positions([CLOSE], special_tokens={3}) == [0]


def test_one_candidate_is_no_choice():
    assert positions([[(1, -0.5)]]) == []


def test_a_saturated_logprob_ranks_first_and_last_as_published():
    certain = [(1, 0.0), (2, -20.0), (3, -20.5)]
    assert [token for token, _ in ranked(certain)] == [1, 2, 3]
    assert [token for token, _ in ranked(certain, "published")] == [2, 3, 1]
    assert positions([certain]) == []
    (pivot,) = select_pivots(
        [1], [certain], 0, block_size=16, special_tokens=set(), ranking="published"
    )
    assert (pivot.margin, pivot.alternative_token) == (0.5, 2)


logprob = st.floats(min_value=-30, max_value=0)
position = st.lists(
    st.tuples(st.integers(0, 50), logprob), min_size=2, max_size=6, unique_by=lambda e: e[0]
)


@given(st.lists(position, max_size=60), st.integers(0, 40), st.integers(0, 3), st.integers(1, 6))
def test_every_pivot_satisfies_the_filter(topk, prompt_length, slack, most):
    tokens = [candidates[-1][0] for candidates in topk]
    special = {0, 1}
    pivots = select_pivots(
        tokens,
        topk,
        prompt_length,
        block_size=16,
        special_tokens=special,
        boundary_slack=slack,
        max_per_rollout=most,
    )
    assert len(pivots) <= most
    assert [p.gen_index for p in pivots] == sorted({p.gen_index for p in pivots})
    for p in pivots:
        best, second = sorted((lp for _, lp in topk[p.gen_index]), reverse=True)[:2]
        assert p.abs_pos == prompt_length + p.gen_index
        assert p.offset == p.abs_pos % 16 <= slack
        assert p.margin == best - second < 1.0
        assert p.sampled_token == tokens[p.gen_index] != p.alternative_token
        assert not special & {p.sampled_token, p.alternative_token}
