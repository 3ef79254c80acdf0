"""Statistics of one configuration beyond the paper's: records in, one JSON-ready dictionary out."""

import numpy as np
import pandas as pd

from replay.analysis import common_set, flipped, pivot_frame, sign_changes
from replay.inference import (
    mcnemar_test,
    problem_excess,
    ratio_interval,
    sign_flip_test,
    sign_test,
)
from replay.planning import detectable_excess, replica_overlap
from replay.protocol import ARMS, PASSES

SELECTION = 0.5
# Published records name neither the block size nor the offset; section 3.1 fixes both.
PAPER_BLOCK, PAPER_SLACK = 16, 2
DECILES = 10
# Margins are differences of rounded logits; below this they differ by float32 rounding alone.
MARGIN_DECIMALS = 6


def beyond(records: list[dict], k: int) -> dict:
    """Everything that the analysis of one configuration says beyond the paper.

    Rates, overlaps and shares are fractions of 1. ``intervals``, ``jaccard_curve`` and
    ``replica_overlap`` hold results of ``inference.ratio_interval``, ``tests`` those of the tests
    there. ``per_problem`` has the sums that they are made from, one entry a problem in each list.

    Raises ValueError for malformed records, see ``analysis.pivot_frame``.
    """
    frame = pivot_frame(records, k)
    common = common_set(frame)
    sums = _problem_sums(frame, common)
    excess = problem_excess(sums)
    refeed, floor = flipped(common, "refeed"), flipped(common, "exact2")
    return {
        "k": k,
        "per_problem": {name: values.tolist() for name, values in sums.items()},
        "intervals": _intervals(sums),
        "tests": {
            "sign": sign_test(excess),
            "sign_flip": sign_flip_test(excess),
            "mcnemar": mcnemar_test(int((refeed & ~floor).sum()), int((floor & ~refeed).sum())),
        },
        "jaccard_curve": _curve(frame, k),
        "by_offset": _by_offset(frame, common),
        "by_margin_decile": _by_margin_decile(common),
        "by_grader": _by_grader(records, k),
        "only_published_ranking": _only_published_ranking(records),
        "detectable_excess": detectable_excess(excess),
        "replica_overlap": replica_overlap(records, k, SELECTION),
    }


def _curve(frame: pd.DataFrame, k: int) -> list[dict]:
    """Overlap with exact pass 1 of the selections at every multiple of 1/K (paper 5.2)."""
    overlaps = _overlaps(frame, k)
    return [
        {"threshold": step / k}
        | {
            name: ratio_interval(both[:, step], either[:, step])
            for name, (both, either) in overlaps.items()
        }
        for step in range(1, k + 1)
    ]


def _problem_sums(frame: pd.DataFrame, common: pd.DataFrame) -> dict[str, np.ndarray]:
    """One entry a problem in each array; selections are those at SELECTION."""
    columns = pd.DataFrame({"problem_id": frame["problem_id"], "eligible": 0}, index=frame.index)
    columns.loc[common.index, "eligible"] = 1
    for name, p in (("refeed", "refeed"), ("floor", "exact2")):
        columns[f"{name}_flips"] = flipped(frame, p).astype(int)
    exact = frame["A_exact1"].abs() >= SELECTION
    for name, p in (("refeed", "refeed"), ("replica", "exact2")):
        selected = frame[f"A_{p}"].abs() >= SELECTION
        columns[f"{name}_both"] = (selected & exact).astype(int)
        columns[f"{name}_either"] = (selected | exact).astype(int)
    sums = columns.groupby("problem_id", as_index=False).sum()
    return {name: sums[name].to_numpy() for name in sums}


def _intervals(sums: dict[str, np.ndarray]) -> dict:
    """Intervals of the two rates, their difference, the two overlaps, and ``floor_share``.

    The excess is Table 1's: the difference of the rates over all eligible pivots, not the mean of
    the problems' differences. ``floor_share`` is floor sign changes over re-feed sign changes, the
    part of the re-feed disagreement that repeating the measurement shows as well. It exceeds 1
    where the replica disagrees more often than re-feed: then the floor explains all of it.
    """
    refeed, floor, eligible = (sums[n] for n in ("refeed_flips", "floor_flips", "eligible"))
    return {
        "excess": ratio_interval(refeed - floor, eligible),
        "refeed_rate": ratio_interval(refeed, eligible),
        "floor_rate": ratio_interval(floor, eligible),
        "refeed_jaccard": ratio_interval(sums["refeed_both"], sums["refeed_either"]),
        "replica_jaccard": ratio_interval(sums["replica_both"], sums["replica_either"]),
        "floor_share": ratio_interval(floor, refeed),
    }


def _overlaps(frame: pd.DataFrame, k: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per comparison: pivots selected in both passes, and in either, as [problem, threshold * K].

    A pivot is in both selections up to the smaller of its two sizes, in either up to the larger.
    """
    problem, names = pd.factorize(frame["problem_id"])
    sizes = {p: (frame[f"A_{p}"].abs() * k).round().astype(int).to_numpy() for p in PASSES}

    def reached(units: np.ndarray) -> np.ndarray:
        cells = np.bincount(problem * (k + 1) + units, minlength=len(names) * (k + 1))
        counts = cells.reshape(len(names), k + 1)
        return counts[:, ::-1].cumsum(axis=1)[:, ::-1]

    return {
        name: (
            reached(np.minimum(sizes["exact1"], sizes[p])),
            reached(np.maximum(sizes["exact1"], sizes[p])),
        )
        for name, p in (("refeed", "refeed"), ("replica", "exact2"))
    }


def _by_offset(frame: pd.DataFrame, common: pd.DataFrame) -> list[dict] | None:
    """Sign changes of the eligible pivots by tokens past the block boundary; None if unknown."""
    recorded = frame["offset"].notna().all()
    offsets = frame["offset"] if recorded else frame["abs_pos"] % PAPER_BLOCK
    if not recorded and (offsets > PAPER_SLACK).any():
        return None
    return [
        {"offset": int(offset)} | sign_changes(common[offsets[common.index] == offset])
        for offset in sorted(offsets.unique())
    ]


def _by_margin_decile(common: pd.DataFrame) -> list[dict]:
    """Sign changes by decile of the eligible pivots' margins, smallest first.

    Equal margins stay together, so ties make the groups fewer than ten and unequal.
    """
    margin = common["margin"].round(MARGIN_DECIMALS).to_numpy()
    if not len(margin):
        return []
    edges = np.unique(np.quantile(margin, np.arange(1, DECILES) / DECILES, method="inverted_cdf"))
    group = np.searchsorted(edges, margin)
    return [
        {"low": float(margin[group == g].min()), "high": float(margin[group == g].max())}
        | sign_changes(common[group == g])
        for g in np.unique(group)
    ]


def _only_published_ranking(records: list[dict]) -> dict:
    """Pivots that only ``pivots.ranking: published`` finds, of those with stored top-k logprobs.

    Theirs is a logprob of exactly 0.0, which that ranking passes over. In float32 it leaves the
    other tokens 16 nats or more behind, so ranked by probability they are far from a low margin.
    """
    stored = [record["topk"] for record in records if record.get("topk")]
    count = sum(any(logprob == 0.0 for _, logprob in topk) for topk in stored)
    return {"n": len(stored), "count": count, "share": count / len(stored) if stored else None}


def _by_grader(records: list[dict], k: int) -> dict | None:
    """Sign changes with the estimates of every grader, each on its own eligible pivots.

    None where no record holds ``outcomes_by_grader``.
    """
    graded = [record for record in records if record.get("outcomes_by_grader")]
    if not graded:
        return None
    graders = graded[0]["outcomes_by_grader"][PASSES[0]][ARMS[0]][0]
    return {name: sign_changes(common_set(_regraded(graded, name, k))) for name in graders}


def _regraded(records: list[dict], grader: str, k: int) -> pd.DataFrame:
    def right(outcomes: list[dict]) -> int:
        return sum(outcome[grader] == "right" for outcome in outcomes)

    def estimate(arms: dict) -> float:
        return (right(arms["actual"]) - right(arms["alt"])) / k

    return pivot_frame(
        (
            record | {f"A_{p}": estimate(record["outcomes_by_grader"][p]) for p in PASSES}
            for record in records
        ),
        k,
    )
