"""`replay.sampling.draw` as one launch, for a GPU; imported only where an engine starts on one.

As a batch of operations a draw is some fifty launches, which take the host longer than the device,
and one wait for a result. Here a program a row races over the whole vocabulary: the first winner is
in the nucleus as often as `top_p` says, and where it is not, what is no heavier is out of it too,
so that the race is run again among the heavier ones.
"""

import torch
import triton
import triton.language as tl

from replay.sampling import UNIT

BLOCK, WARPS = 4096, 16  # tokens that a program looks at together, and who looks


def name_winners(
    logits: torch.Tensor,
    rows: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    streams: torch.Tensor,
) -> None:
    """`replay.sampling.name_winners`; the vocabulary of a row of ``logits`` is contiguous.

    Weights can differ from its in the last bits of float32, and with them, hardly ever, a token.
    """
    _name_winner[(len(rows),)](
        logits,
        logits.stride(0),
        logits.shape[1],
        rows,
        temperature,
        top_p,
        streams,
        UNIT=float(UNIT),
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


@triton.jit
def _name_winner(
    logits,
    stride,
    vocabulary,
    rows,
    temperature,
    top_p,
    streams,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    row = logits + tl.load(rows + program) * stride
    heat = tl.load(temperature + program).to(tl.float32)
    share = tl.load(top_p + program)
    stream = tl.load(streams + program).to(tl.uint64)
    lanes = tl.arange(0, BLOCK)

    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        peaks = tl.maximum(peaks, _scaled(row, start + lanes, vocabulary, heat))
    peak = tl.max(peaks, 0)

    token = 0
    bar = 0.0  # weights up to it are outside
    limit = share * _mass_above(bar, row, vocabulary, heat, peak, UNIT, BLOCK)
    searching = True
    while searching:
        scores = tl.zeros([BLOCK], tl.float64)
        tokens = tl.zeros([BLOCK], tl.int32)
        heaviness = tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocabulary, BLOCK):
            weights = _weights(row, start + lanes, vocabulary, heat, peak)
            score = weights.to(tl.float64) / _exponential(stream, start + lanes)
            better = (weights > bar) & (score > scores)
            scores = tl.where(better, score, scores)
            tokens = tl.where(better, start + lanes, tokens)
            heaviness = tl.where(better, weights, heaviness)
        score = tl.max(scores, 0)
        token = tl.max(tl.where(scores == score, tokens, 0), 0)
        bar = tl.max(tl.where(scores == score, heaviness, 0.0), 0)
        above = _mass_above(bar, row, vocabulary, heat, peak, UNIT, BLOCK)
        # A row with a NaN has no winner: its token is 0, and the engine refuses it later.
        searching = (share < 1) & (above >= limit) & (score > 0)
    tl.store(row + token, tl.load(row + token) + float("inf"))


@triton.jit
def _mass_above(bar, row, vocabulary, heat, peak, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    masses = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        weights = _weights(row, start + tl.arange(0, BLOCK), vocabulary, heat, peak)
        masses += tl.where(weights > bar, (weights * UNIT).to(tl.int64), 0)
    return tl.sum(masses, 0).to(tl.float64)


@triton.jit
def _weights(row, tokens, vocabulary, heat, peak):
    return tl.exp(_scaled(row, tokens, vocabulary, heat) - peak)


@triton.jit
def _scaled(row, tokens, vocabulary, heat):
    logits = tl.load(row + tokens, mask=tokens < vocabulary, other=float("-inf"))
    scaled = tl.div_rn(logits.to(tl.float32), heat)
    return tl.where(scaled == scaled, scaled, float("inf"))  # a maximum would leave NaN out


@triton.jit
def _exponential(stream, tokens):
    bits = _splitmix(stream + tokens.to(tl.uint64))
    uniform = ((bits >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2**-53
    left = 1.0 - uniform
    return ((left - 1.0) + uniform) - tl.log(left)  # -log1p(-uniform): what rounding took is added


@triton.jit
def _splitmix(state):
    state = state + 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)
