"""Pivots: low-margin generated tokens just past a block boundary (paper section 3.1)."""

import math
from collections.abc import Container
from dataclasses import asdict, dataclass

TopK = list[tuple[int, float]]  # (token id, raw logprob) of one position


@dataclass(frozen=True)
class Pivot:
    """One decision point of a rollout: the continuation prompt is tokens[:abs_pos] + [forced]."""

    gen_index: int  # position among the generated tokens
    abs_pos: int  # position in prompt + generated tokens
    offset: int  # tokens past the block boundary
    margin: float  # top-1 minus top-2 logprob, nats
    sampled_token: int
    alternative_token: int
    topk: TopK

    def as_dict(self) -> dict:
        return asdict(self)


def ranked(topk: TopK, ranking: str = "text") -> TopK:
    """Most probable first. `published` ranks a logprob of 0.0 last, as the paper's harness did.

    A logprob of exactly 0.0 is float32 saturation: the token of which the model was certain.
    """

    def logprob(entry: tuple[int, float]) -> float:
        value = entry[1]
        return -math.inf if ranking == "published" and value == 0.0 else value

    return sorted(topk, key=logprob, reverse=True)


def select_pivots(
    token_ids: list[int],
    topk: list[TopK],
    prompt_length: int,
    *,
    block_size: int,
    special_tokens: Container[int],
    margin_lt: float = 1.0,
    boundary_slack: int = 2,
    max_per_rollout: int = 5,
    ranking: str = "text",
) -> list[Pivot]:
    """Select the pivots of one rollout, earliest first.

    `token_ids` are the generated tokens and `topk` their top logprobs, one list a position. A
    pivot's gap between the two top logprobs is below `margin_lt` and it lies at most
    `boundary_slack` tokens past a boundary of `block_size` tokens. The alternative is the best
    token other than the sampled one. A position whose sampled or alternative token is special
    (end of turn, padding) is skipped: no solution continues past it.
    """
    pivots = []
    for index, (token, candidates) in enumerate(zip(token_ids, topk, strict=True)):
        if len(pivots) == max_per_rollout:
            break
        offset = (prompt_length + index) % block_size
        if offset > boundary_slack or len(candidates) < 2:
            continue
        order = ranked(candidates, ranking)
        margin = order[0][1] - order[1][1]
        alternative = next(other for other, _ in order if other != token)
        if margin >= margin_lt or token in special_tokens or alternative in special_tokens:
            continue
        pivots.append(
            Pivot(index, prompt_length + index, offset, margin, token, alternative, order)
        )
    return pivots
