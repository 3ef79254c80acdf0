"""Seeded sampling: the race, its noise and the nucleus."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from replay.sampling import GOLDEN, WIDTH, _splitmix, draw, exponential, noise_streams


def tensors(rows, temperature, top_p, seeds, positions=0):
    return (
        torch.full((rows,), temperature, dtype=torch.float64),
        torch.full((rows,), top_p, dtype=torch.float64),
        noise_streams(
            torch.as_tensor(seeds, dtype=torch.int64).expand(rows), torch.tensor(positions)
        ),
    )


def one_by_one(logits, temperature, top_p, seed, position):
    """The definition, in numpy: what is heavier than a token, one exponential number a token."""
    scaled = (logits / np.float32(temperature)).numpy()
    weights = np.exp(scaled - scaled.max()).astype(float)
    above = np.where(weights > weights[:, None], weights, 0).sum(1)
    nucleus = np.flatnonzero((above < top_p * weights.sum()) | (top_p == 1))
    tokens = torch.arange(len(weights))
    noise = exponential(noise_streams(torch.tensor(seed), torch.tensor(position)), tokens).numpy()
    return nucleus[np.argmax(weights[nucleus] / noise[nucleus])]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31 - 1),
    position=st.integers(0, 600),
    temperature=st.sampled_from([0.2, 0.7, 1.0, 3.0]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    spread=st.sampled_from([0.5, 3.0, 12.0]),
    ties=st.booleans(),
)
def test_a_draw_is_the_winner_of_the_race_over_the_nucleus(
    seed, position, temperature, top_p, spread, ties
):
    logits = torch.randn(4, WIDTH + 50, generator=torch.Generator().manual_seed(seed)) * spread
    logits = logits.round() if ties else logits
    got = draw(logits, *tensors(4, temperature, top_p, seed, position))
    expected = [one_by_one(row, temperature, top_p, seed, position) for row in logits]
    assert got.tolist() == expected


def test_a_nucleus_may_be_larger_than_what_is_looked_at_first():
    logits = torch.randn(4, 20 * WIDTH, generator=torch.Generator().manual_seed(5))
    logits *= torch.tensor([[0.1], [1.0], [2.0], [9.0]])  # nuclei of 4,808, 3,813, 1,869 and 4
    got = draw(logits, *tensors(4, 1.0, 0.95, 11, 3))
    assert got.tolist() == [one_by_one(row, 1.0, 0.95, 11, 3) for row in logits]


def test_draws_follow_the_truncated_distribution():
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1)) * 2
    count = 40_000
    rows = logits.expand(count, 40).contiguous()
    got = draw(rows, *tensors(count, 0.7, 0.9, torch.arange(count)))
    probabilities = (logits[0].double() / 0.7).softmax(0).numpy()
    order = np.argsort(-probabilities)
    above = np.concatenate([[0.0], np.cumsum(probabilities[order])[:-1]])
    nucleus = order[above < 0.9]
    observed = np.bincount(got.numpy(), minlength=40)
    assert observed.sum() == observed[nucleus].sum()
    expected = probabilities[nucleus] / probabilities[nucleus].sum() * count
    assert stats.chisquare(observed[nucleus], expected).pvalue > 1e-3


def test_a_row_does_not_depend_on_the_rows_beside_it():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(33, 500, generator=generator) * 4
    logits[5] = 0.0  # a flat row takes every token as a candidate
    arguments = tensors(33, 0.7, 0.95, torch.arange(33))
    together = draw(logits, *arguments)
    alone = [draw(logits[i : i + 1], *(a[i : i + 1] for a in arguments)) for i in range(33)]
    assert together.tolist() == [int(token) for token in alone]


def test_a_token_is_out_where_what_is_above_it_has_the_whole_share():
    logits = torch.tensor([[0.0, np.log(0.5), np.log(0.5)]]).expand(200, 3)  # 1 of 2
    drawn = draw(logits, *tensors(200, 1.0, 0.5, torch.arange(200)))
    assert set(drawn.tolist()) == {0}
    drawn = draw(logits, *tensors(200, 1.0, np.nextafter(0.5, 1), torch.arange(200)))
    assert set(drawn.tolist()) == {0, 1, 2}


@pytest.fixture
def with_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_nucleus_is_the_same_however_its_row_is_summed(with_threads):
    """The last bit of each row's sum decides whether its second token is in the nucleus."""
    logits = torch.randn(20, 49152, generator=torch.Generator().manual_seed(1)) * 3
    weights = (logits - logits.amax(1, keepdim=True)).exp().double()
    temperature, _, streams = tensors(20, 1.0, 1.0, 0)
    for bits in range(-3, 4):
        arguments = temperature, (1 + bits * 2.0**-52) / weights.sum(1), streams + bits
        drawn = []
        for threads in (1, 2):
            with_threads(threads)
            alone = (draw(logits[i : i + 1], *(a[i : i + 1] for a in arguments)) for i in range(20))
            drawn += [draw(logits, *arguments).tolist(), [int(token) for token in alone]]
        assert all(tokens == drawn[0] for tokens in drawn)


def test_equal_weights_are_in_or_out_together_however_many_they_are():
    """The nucleus ends amid tokens of one weight, of which some are among the heaviest WIDTH."""
    logits = torch.zeros(4000, WIDTH + 50)
    logits[:, : WIDTH - 4] = 1.0
    share = 1 - 52 / ((WIDTH - 4) * np.e + 54)  # the first two of the 54 reach it
    drawn = draw(logits, *tensors(4000, 1.0, share, torch.arange(4000)))
    assert set(range(WIDTH - 4, WIDTH + 50)) <= set(drawn.tolist())


def test_a_row_of_nan_is_given_a_token_and_changes_no_other_row():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    arguments = tensors(3, 0.7, 0.95, torch.arange(3))
    expected = draw(logits, *arguments).tolist()
    logits[1, 7] = torch.nan
    assert draw(logits, *arguments).tolist() == [expected[0], 0, expected[2]]


def test_the_top_token_wins_where_nothing_else_is_in_the_nucleus():
    logits = torch.randn(8, 100, generator=torch.Generator().manual_seed(3))
    best = logits.argmax(1).tolist()
    assert draw(logits, *tensors(8, 0.7, 1e-6, torch.arange(8))).tolist() == best
    assert draw(logits, *tensors(8, 1e-4, 0.95, torch.arange(8))).tolist() == best


def test_splitmix_gives_the_known_sequence():
    states = 1234567 + torch.arange(3) * GOLDEN
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(value) % 2**64 for value in _splitmix(states)] == known


def test_noise_is_exponential_and_unrelated_across_seeds_positions_and_tokens():
    zeros, numbers = torch.zeros(20_000, dtype=torch.int64), torch.arange(20_000)
    streams = [
        exponential(noise_streams(numbers, zeros), zeros),
        exponential(noise_streams(zeros, numbers), zeros),
        exponential(noise_streams(zeros, zeros), numbers),
        exponential(noise_streams(zeros + 1, zeros), numbers),
    ]
    for stream in streams:
        assert stats.kstest(stream.numpy(), "expon").pvalue > 1e-3
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 0.03
    related = np.corrcoef(np.stack(streams)) - np.eye(len(streams))
    assert np.abs(related[:, 1:]).max() < 0.03
