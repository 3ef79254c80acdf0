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
LIKELY = 1e-4  # a weight, relative to the largest of its row, that few nuclei reach below
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
    limit = torch.where(top_p < 1, top_p * weights.sum(1, dtype=torch.float64), torch.inf)
    row, token = _candidates(weights, limit)
    weight = weights[row, token]
    inside = _mass_above(row, weight) < UNIT * limit[row]
    score = weight.double() / exponential(streams[row], token)
    score = torch.where(inside, score, -1.0)
    best = score.new_full(limit.shape, -1.0).scatter_reduce_(0, row, score, "amax")
    winners = torch.where(score == best[row], token, 0)
    # A row of NaN has no candidate and keeps 0; the engine refuses it later.
    return torch.zeros_like(streams).scatter_reduce_(0, row, winners, "amax")


def _candidates(weights, limit):
    """Rows (ascending) and tokens of all weights that can be in a nucleus."""
    row, token = (weights >= LIKELY).nonzero(as_tuple=True)
    mass = torch.zeros_like(limit).scatter_add_(0, row, weights[row, token].double())
    covered = mass >= limit
    if covered.all():
        return row, token
    least = torch.where(covered, LIKELY, torch.finfo(weights.dtype).tiny)
    return (weights >= least.to(weights.dtype)[:, None]).nonzero(as_tuple=True)


def _mass_above(row, weight):
    """What the heavier candidates of its row weigh, for each candidate, in 1/UNIT.

    Integers, so that the sum is exact in any order and beside any other rows; rows are ascending.
    """
    # Positive floats order as their bits do: by row, then from the heaviest down.
    key, order = ((row << 32) - weight.view(torch.int32)).sort()
    mass = (weight[order].double() * UNIT).long()
    before = mass.cumsum(0) - mass
    above = before[torch.searchsorted(key, key)] - before[torch.searchsorted(row, row)]
    return torch.empty_like(above).scatter_(0, order, above)


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
