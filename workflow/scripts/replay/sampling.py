"""Sampling as a function of one request's logits, seed and position.

vLLM's seeded sampler draws a number for every token of the vocabulary from a generator a request,
one launch each, sorts the vocabulary for top-p, and takes another code path below eight requests.
Here the same race (the largest weight over an exponential number wins, among the nucleus) is run
over the few tokens that can win it, with noise that is hashed instead of drawn: nothing of a
request's sample depends on what shares its step, and one batch is one set of operations.
"""

import torch

# splitmix64: the increment and the two multipliers, as signed 64-bit numbers.
GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
WIDTH = 256  # heaviest tokens of a row that are looked at first: few nuclei are larger
UNIT = 2**44  # parts of the largest weight: a vocabulary of them can be summed in 63 bits


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    streams: torch.Tensor,
) -> torch.Tensor:
    """One token a row: exponential race over the nucleus at a temperature (paper section 3.2).

    ``logits`` is (rows, vocabulary) in float32, all others are (rows,): ``temperature`` and
    ``top_p`` float64, ``streams`` those of `noise_streams`, int64. The nucleus holds a token when
    the mass of those above it is less than ``top_p``; equal weights are in or out together.
    Returns int64 tokens.
    """
    weights = logits / temperature.to(logits.dtype)[:, None]
    weights.sub_(weights.amax(1, keepdim=True)).exp_()
    # In 1/UNIT, as integers: their sum is exact in any order, on any number of threads.
    total = (weights * UNIT).sum(1, dtype=torch.int64)
    limit = torch.where(top_p < 1, top_p * total, torch.inf)
    return _winners(weights, limit, streams, WIDTH)


def name_winners(
    logits: torch.Tensor,
    rows: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    streams: torch.Tensor,
) -> None:
    """Make the logit of each winner infinite, in place; of other rows nothing changes.

    ``logits`` is (requests, vocabulary), ``rows`` int64 says which of them are drawn; the others
    are those of `draw`, one for each of ``rows``. `replay.sampling_kernel` does the same on a GPU.
    """
    # Added, not set: a NaN stays one, and is counted later.
    logits[rows, draw(logits[rows], temperature, top_p, streams)] += torch.inf


def _winners(weights, limit, streams, width):
    """Each row's winner, among its `width` heaviest tokens where these hold the nucleus."""
    weight, token = weights.topk(min(width, weights.shape[1]))
    mass = (weight * UNIT).long()
    beyond = mass.cumsum(1) - mass >= limit[:, None]  # by what the heavier ones weigh
    outside = weight < weight.masked_fill(beyond, torch.inf).amin(1, keepdim=True)
    score = weight.double() / exponential(streams[:, None], token)
    score = score.masked_fill(outside, -1.0)
    # A row of NaN has no winner and is given 0; the engine refuses it later.
    winners = token.masked_fill(score != score.amax(1, keepdim=True), 0).amax(1)
    # The one look at a result, after all is under way: before, the host would wait for the model.
    if width < weights.shape[1] and not (whole := outside[:, -1]).all():
        rest = (~whole).nonzero(as_tuple=True)[0]
        winners[rest] = _winners(weights[rest], limit[rest], streams[rest], 16 * width)
    return winners


def noise_streams(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One number for each (seed, tokens generated so far), all int64, that names its noise."""
    return _splitmix(_splitmix(seeds) + positions)


def exponential(streams: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Exponential numbers of mean 1 in float64, one for each (stream, token), all int64."""
    bits = _splitmix(streams + tokens)
    uniform = ((bits >> 11 & 2**53 - 1).double() + 0.5) * 2.0**-53
    return -torch.log1p(-uniform)


def _splitmix(state: torch.Tensor) -> torch.Tensor:
    """The splitmix64 generator's output for a state, int64 standing for unsigned numbers."""
    state = state + GOLDEN
    state = (state ^ (state >> 30 & 2**34 - 1)) * FIRST
    state = (state ^ (state >> 27 & 2**37 - 1)) * SECOND
    return state ^ (state >> 31 & 2**33 - 1)
