"""Why re-feeding changes estimates: what each control says, from a records file.

A comparison sets one pass against another. All comparisons of a configuration share one
denominator, the pivots whose estimate is nonzero in any pass of its list; how many signs differ
does not depend on it. Undefined values are None.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from replay.analysis import common_set, flipped, pivot_frame
from replay.inference import BATCH, RESAMPLES, SEED, ratio_interval
from replay.protocol import CATALOGUE, REFERENCE, others, passes_of


class Comparison(NamedTuple):
    """Two passes, what their difference is the effect of, and whether it is a replica floor."""

    reference: str
    compared: str
    label: str
    floor: bool = False


COMPARISONS = {
    "refeed": Comparison("exact1", "refeed", "re-feed"),
    "state": Comparison("exact1", "prefill_warm", "recomputed state"),
    "batch": Comparison("prefill_warm", "refeed", "batch dynamics"),
    "serial_refeed": Comparison("serial_exact", "serial_refeed", "re-feed, serial"),
    "text": Comparison("refeed", "text_refeed", "by way of text"),
    "serial": Comparison("exact1", "serial_exact", "serial batches"),
    "staggered": Comparison("exact1", "staggered", "staggered batches"),
    "floor": Comparison("exact1", "exact2", "floor", floor=True),
    "refeed_floor": Comparison("refeed", "refeed2", "re-feed replica", floor=True),
    "staggered_floor": Comparison("staggered", "staggered2", "staggered floor", floor=True),
}
PARTS = ("state", "batch")  # of the effect of re-feeding
TOLERANCE = 1e-12


def controls(content: dict) -> dict:
    """What the passes of a records file say beyond the three of the paper.

    ``comparisons`` has one entry for each pair of `COMPARISONS` whose passes were run,
    ``decomposition`` splits the effect of re-feeding, ``fidelity`` sets every pass against the
    trunk itself, ``order_effect`` tests whether the order of the passes matters, and
    ``text_tokens`` counts the pivots whose token ids changed on their way through text.

    Raises ValueError for malformed records, see ``analysis.pivot_frame``.
    """
    records, passes = content["pivots"], passes_of(content)
    frame = pivot_frame(records, content["config"]["k"], passes)
    common = common_set(frame, passes)
    sums = _problem_sums(common, passes)
    return {
        "passes": {name: _pass_facts(records, name, content["config"]["k"]) for name in passes},
        "comparisons": {
            name: _comparison(sums, name, len(common)) for name in COMPARISONS if name in sums
        },
        "decomposition": decomposition(sums),
        "fidelity": _fidelity(records, passes),
        "order_effect": _order_effect(content["per_problem"], common, passes),
        "text_tokens": _text_tokens(records, common),
    }


def _problem_sums(common: pd.DataFrame, passes: list[str]) -> dict:
    """One entry a problem: eligible pivots, and by comparison sign changes, reversals, differences.

    A comparison is there only where both of its passes were run.
    """
    problem = common["problem_id"]
    sums: dict = {"eligible": common.groupby(problem).size().to_numpy()}
    for name, (reference, compared, *_) in COMPARISONS.items():
        if {reference, compared} <= set(passes):
            one, other = common[f"A_{reference}"], common[f"A_{compared}"]
            columns = {
                "flips": flipped(common, compared, reference).astype(int),
                "reversals": (one * other < 0).astype(int),
                "difference": other - one,
            }
            sums[name] = {
                key: values.groupby(problem).sum().to_numpy() for key, values in columns.items()
            }
    return sums


def _comparison(sums: dict, name: str, n: int) -> dict:
    return {
        "reference": COMPARISONS[name].reference,
        "compared": COMPARISONS[name].compared,
        "n": n,
        "flips": int(sums[name]["flips"].sum()),
        "polarity_reversals": int(sums[name]["reversals"].sum()),
        "rate": ratio_interval(sums[name]["flips"], sums["eligible"]),
        "mean_difference": ratio_interval(sums[name]["difference"], sums["eligible"]),
    }


def decomposition(sums: dict) -> dict:
    """The effect of re-feeding as that of recomputed state and that of batch dynamics.

    The parts are exact 1 against prefill_warm and prefill_warm against re-feed. A sign that differs
    between the ends differs in at least one part, so the parts' rates never sum to less than the
    total; ``surplus`` is what they sum to above it. They add up where it is 0, do not where its
    interval stays above, and between the two, or on one problem, nothing is shown.
    Signed mean differences add up always. ``shares`` are of the total's sign changes. ``missing``
    names the comparisons that were not run; what needs them is None.
    """
    missing = [name for name in PARTS if name not in sums]
    result = {"missing": missing, "n_problems": len(sums["eligible"])}
    if missing:
        return result | {"shares": None, "surplus": None, "adds_up": None}
    total, state, batch = (sums[name]["flips"] for name in ("refeed", *PARTS))
    surplus = ratio_interval(state + batch - total, sums["eligible"])
    return result | {
        "shares": {name: ratio_interval(sums[name]["flips"], total) for name in PARTS},
        "surplus": surplus,
        "adds_up": _adds_up(surplus),
    }


def _adds_up(surplus: dict) -> bool | None:
    if surplus["estimate"] == 0:
        return True if surplus["n_problems"] > 1 else None
    # It is never negative: that an interval reaches 0 shows nothing.
    return False if surplus["ci95"] and surplus["ci95"][0] > TOLERANCE else None


def _pass_facts(records: list[dict], name: str, k: int) -> dict:
    """Whether a pass did what it is for, and how much of it equals exact 1; rates of 1."""

    def recorded(field: str) -> list:
        values = (record.get(f"{field}_{name}") for record in records)
        return [value for value in values if value is not None]

    def mean(values: Iterable) -> float | None:
        values = list(values)
        return float(np.mean(values)) if values else None

    compared = name != REFERENCE
    return {
        "resumed_rate": mean(recorded("cache_ok")) if CATALOGUE[name].warm else None,
        "preempted": sum(recorded("preempted")) if recorded("preempted") else None,
        "continuations_equal_rate": mean(n / (2 * k) for n in recorded("continuations_equal"))
        if compared
        else None,
        "first_logprob_equal_rate": mean(
            delta == 0 for delta in recorded("greedy_first_logprob_delta")
        )
        if compared
        else None,
    }


def _fidelity(records: list[dict], passes: list[str]) -> dict | None:
    """Each pass's first probe logprob in the actual arm against the trunk's own at that position.

    Differences in nats, overall and by tokens past the block boundary; those tokens are computed
    anew in every pass. None where the records hold no trunk logprobs.
    """
    stored = [record for record in records if "next_topk" in record]
    if not stored:
        return None
    ends = sum(record["next_topk"] is None for record in stored)
    return {
        name: _deltas([r[f"trunk_delta_{name}"] for r in stored])
        | {
            "rollout_ends": ends,
            "not_in_topk": sum(r[f"trunk_delta_{name}"] is None for r in stored) - ends,
            "by_offset": [
                {"offset": offset}
                | _deltas([r[f"trunk_delta_{name}"] for r in stored if r["offset"] == offset])
                for offset in sorted({record["offset"] for record in stored})
            ],
        }
        for name in passes
    }


def _deltas(values: list[float | None]) -> dict:
    known = np.sort([value for value in values if value is not None])
    n = len(known)
    return {
        "n": n,
        "bit_exact_rate": float((known == 0).mean()) if n else None,
        "median": float(known[n // 2]) if n else None,
        "p90": float(known[int(0.9 * n)]) if n else None,
    }


def _order_effect(per_problem: list[dict], common: pd.DataFrame, passes: list[str]) -> dict:
    """Whether a pass differs more from exact 1 where it ran later; see `order_test`."""
    flips = pd.DataFrame({name: flipped(common, name) for name in others(passes)})
    rates = flips.astype(float).groupby(common["problem_id"]).mean()
    orders = {p["problem_id"]: p.get("pass_order") for p in per_problem}
    known = [problem for problem in rates.index if orders.get(problem)]
    places = [[orders[problem].index(name) for name in rates] for problem in known]
    shape = len(known), len(rates.columns)
    return order_test(rates.loc[known].to_numpy(), np.array(places, float).reshape(shape))


def order_test(rates: np.ndarray, places: np.ndarray) -> dict:
    """Permutation test of the slope of sign-change rates on the place at which a pass ran.

    ``rates`` and ``places`` are [problem, pass]. Rates are centred by pass, so that passes which
    differ in their rates do not count as an order effect. The orders were drawn at random for every
    problem, so under the null any problem could have had any other's: they are permuted over
    problems, all permutations where they are few, else a seeded sample. ``slope`` is in rate per
    place. ``undefined`` says why there is no ``p``.
    """
    result = {"n_problems": len(rates), "slope": None, "p": None, "undefined": None}
    if len(rates) < 2:
        return result | {"undefined": "fewer than two problems"}
    x, y = places - places.mean(axis=0), rates - rates.mean(axis=0)
    if not x.any():
        return result | {"undefined": "the order does not vary"}
    if np.abs(y).max() < TOLERANCE:
        return result | {"slope": 0.0, "undefined": "the rates do not vary"}

    def covariation(problem: np.ndarray, axis: int) -> np.ndarray:
        return np.einsum("...ij,ij->...", x[np.moveaxis(problem, axis, -1)], y)

    test = stats.permutation_test(
        (np.arange(len(rates)),),
        covariation,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, BATCH // x.size),
        rng=np.random.default_rng(SEED),
    )
    slope = float((x * y).sum() / (x * x).sum())
    return result | {"slope": slope, "p": float(test.pvalue)}


def _text_tokens(records: list[dict], common: pd.DataFrame) -> dict | None:
    """Pivots whose token ids changed on their way through text, and sign changes with and without.

    An arm's ids changed where its prefix and forced token, decoded and tokenised again, are other
    tokens. Sign changes are those of text_refeed against re-feed, over the eligible pivots of each
    kind. None where no pass took text.
    """
    if not records or "text_changed" not in records[0]:
        return None
    changed = pd.Series([any(record["text_changed"].values()) for record in records])
    arms = [changed for record in records for changed in record["text_changed"].values()]
    result: dict = {
        "n": len(records),
        "changed": int(changed.sum()),
        "changed_rate": float(changed.mean()),
        "arms_changed": sum(arms),
    }
    differs = flipped(common, "text_refeed", "refeed")
    for kind, chosen in (("with_change", changed), ("without_change", ~changed)):
        part = differs[chosen[common.index]]
        result[kind] = {
            "n": len(part),
            "flips": int(part.sum()),
            "flip_rate": float(part.mean()) if len(part) else None,
        }
    return result
