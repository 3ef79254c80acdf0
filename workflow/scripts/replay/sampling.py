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


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """One token a row: exponential race over the nucleus at a temperature (paper section 3.2).

    ``logits`` is (rows, vocabulary) in float32, all others are (rows,): ``temperature`` and
    ``top_p`` float64, ``seeds`` and ``positions`` (tokens generated so far) int64. The nucleus
    holds a token when the mass of those above it is less than ``top_p``; equal weights are in or
    out together. Returns int64 tokens.
    """
    weights = logits / temperature.to(logits.dtype)[:, None]
    weights.sub_(weights.amax(1, keepdim=True)).exp_()
    limit = torch.where(top_p < 1, top_p * weights.sum(1, dtype=torch.float64), torch.inf)
    row, token, weight = _candidates(weights, limit)
    score = weight / exponential(seeds[row], positions[row], token)
    chosen = torch.zeros_like(seeds)  # what a row of NaN keeps; the engine refuses it later
    while len(row):
        best = score.new_zeros(len(limit)).scatter_reduce_(0, row, score, "amax")
        first = score == best[row]
        # Below a winner of its row a token can be in the nucleus only if it weighs more.
        bound = limit.new_full(limit.shape, torch.inf).index_copy(0, row[first], weight[first])
        heavier = weight > bound[row]
        above = _sums(row, weight.where(heavier, 0), len(limit))
        inside = above < limit
        done = first & inside[row]
        chosen[row[done]] = token[done]
        kept = heavier & ~inside[row]
        row, token, weight, score = row[kept], token[kept], weight[kept], score[kept]
    return chosen


def _candidates(weights, limit):
    """Rows, tokens and weights (float64) of all tokens that can be in a nucleus, in row order."""
    row, token = (weights >= LIKELY).nonzero(as_tuple=True)
    covered = _sums(row, weights[row, token].double(), len(limit)) >= limit
    if not covered.all():
        least = torch.where(covered, LIKELY, torch.finfo(weights.dtype).tiny)
        row, token = (weights >= least.to(weights.dtype)[:, None]).nonzero(as_tuple=True)
    return row, token, weights[row, token].double()


def _sums(row, values, rows: int) -> torch.Tensor:
    """Sum of the values of each row, in float64: another order of summation changes nothing."""
    return values.new_zeros(rows).scatter_add_(0, row, values)


def exponential(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor):
    """Exponential numbers of mean 1 in float64, one for each (seed, position, token), all int64."""
    bits = _splitmix(_splitmix(_splitmix(seeds) + positions) + tokens)
    uniform = ((bits >> 11 & 2**53 - 1).double() + 0.5) * 2.0**-53
    return -torch.log1p(-uniform)


def _splitmix(state: torch.Tensor) -> torch.Tensor:
    """The splitmix64 generator's output for a state, int64 standing for unsigned numbers."""
    state = state + GOLDEN
    state = (state ^ (state >> 30 & 2**34 - 1)) * FIRST
    state = (state ^ (state >> 27 & 2**37 - 1)) * SECOND
    return state ^ (state >> 31 & 2**33 - 1)
