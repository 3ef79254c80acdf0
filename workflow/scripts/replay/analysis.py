"""Statistics of one configuration: per-pivot records in, one JSON-ready dictionary out.

A comparison pass is always set against the first exact pass. "refeed" compares the re-feed pass,
"floor" (or "replica") the second exact pass. Undefined values are None, never NaN.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from replay.protocol import ARMS, COMPARED, OUTCOMES, PASSES, REFERENCE, pivot_key
from replay.storage import read_json

KEY = ["problem_id", "rollout", "abs_pos"]
MARGIN_SPLIT = 0.3
THRESHOLDS = (0.5, 0.75)
# Estimates are sums of 1/K in floating point; anything further off the grid is not an estimate.
GRID_TOLERANCE = 1e-9

_FLAGS = {
    "exact1_cache_miss": ("cache_ok_exact1", 0),
    "exact2_cache_miss": ("cache_ok_exact2", 0),
    "exact1_preempted": ("preempted_exact1", 1),
    "exact2_preempted": ("preempted_exact2", 1),
    "refeed_preempted": ("preempted_refeed", 1),
}
_NUMERIC = [
    "margin",
    *(f"A_{p}" for p in PASSES),
    *(column for column, _ in _FLAGS.values()),
    "borrowed_blocks",
    "gen_index",
    "offset",
    *(
        f"{field}_{p}"
        for p in COMPARED
        for field in (
            "greedy_divergence",
            "greedy_first_logprob_delta",
            "continuations_equal",
            "probe_equal",
        )
    ),
]


def pool(*files: str | Path) -> tuple[list[dict], int]:
    """Concatenate the pivots of several record files of one configuration.

    Returns the records and their common K, so that ``analyze(*pool(a, b))`` works. Of records with
    the same (problem_id, rollout, abs_pos) the first is kept: cohorts of one configuration may
    have been scanned over the same problems (paper 3.4).

    Raises ValueError if a file lacks ``pivots`` or ``config.k``, or if the files differ in K.
    """
    records: dict[tuple, dict] = {}
    budgets: dict[str, int] = {}
    for file in files:
        content = read_json(file)
        try:
            budgets[str(file)] = content["config"]["k"]
            for record in content["pivots"]:
                records.setdefault(pivot_key(record), record)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{file}: not a records file, {error} is missing; it needs config.k and, in every"
                f" entry of pivots, {', '.join(KEY)}"
            ) from error
    if len(set(budgets.values())) != 1:
        raise ValueError(f"pool needs files that share one K, got {budgets}")
    return list(records.values()), next(iter(budgets.values()))


def pivot_frame(records: Iterable[dict], k: int, passes: Iterable[str] = PASSES) -> pd.DataFrame:
    """One row a pivot, sorted by (problem_id, rollout, abs_pos); absent fields are NaN.

    The estimates ``A_<pass>`` of ``passes`` are snapped to the grid of multiples of 1/K, so that
    later comparisons with 0, with each other and with a threshold are exact.

    Raises ValueError, naming the record, for a missing key, margin or estimate, an estimate off
    the grid, or a pivot given twice.
    """
    if k < 1:
        raise ValueError(f"k = {k}: the number of continuations per arm must be at least 1")
    numeric = list(dict.fromkeys([*_NUMERIC, *(f"A_{p}" for p in passes)]))
    frame = pd.DataFrame(records, columns=KEY + numeric)
    frame = frame.astype(dict.fromkeys(numeric, float))
    for name in (*KEY, "margin"):
        _refuse(frame, frame[name].isna(), lambda row, name=name: f"{name} is missing")
    for name in (f"A_{p}" for p in passes):
        units = frame[name] * k
        _refuse(
            frame,
            ~((units - units.round()).abs() <= GRID_TOLERANCE * k) | (units.abs() > k + 0.5),
            lambda row, name=name: (
                f"{name} = {row[name]} is not a multiple of 1/{k} in [-1, 1];"
                " check the record and the configuration's k"
            ),
        )
        frame[name] = (units.round() + 0.0) / k
    _refuse(frame, frame.duplicated(KEY), lambda row: "occurs twice; merge files with pool()")
    return frame.sort_values(KEY)


def _refuse(frame: pd.DataFrame, bad: pd.Series, describe: Callable[[dict], str]) -> None:
    if bad.any():
        row = frame[bad].head(1).to_dict("records")[0]
        where = ", ".join(f"{name} {row[name]}" for name in KEY)
        raise ValueError(f"record {bad.idxmax()} ({where}): {describe(row)}")


def common_set(frame: pd.DataFrame, passes: Iterable[str] = PASSES) -> pd.DataFrame:
    """The eligible pivots: those whose estimate is nonzero in any pass (paper 3.2)."""
    return frame[(frame[[f"A_{p}" for p in passes]] != 0).any(axis=1)]


def flipped(frame: pd.DataFrame, compared: str, reference: str = REFERENCE) -> pd.Series:
    """Whether the sign of the estimate under ``compared`` differs from that under ``reference``."""
    return np.sign(frame[f"A_{compared}"]) != np.sign(frame[f"A_{reference}"])


def clustered_given_exact1(records: list[dict], k: int) -> dict:
    """``clustered`` of ``analyze`` over the pivots of ``exact1_conditioned`` (paper 3.2)."""
    frame = pivot_frame(records, k)
    return _clustered(frame[frame["A_exact1"] != 0])


def analyze(records: list[dict], k: int) -> dict:
    """All statistics of one configuration (paper 3.2, 5.1 to 5.4), JSON-serialisable.

    ``records`` are the pivots of one configuration, ``k`` its continuations per arm. Rates are
    fractions of 1, logprob deltas absolute differences in nats.

    Raises ValueError for malformed records, see ``pivot_frame``.
    """
    frame = pivot_frame(records, k)
    common = common_set(frame)
    low_margin = common["margin"] < MARGIN_SPLIT
    return {
        "n_records": len(frame),
        "n_problems": int(frame["problem_id"].nunique()),
        "common_set": sign_changes(common),
        "exact1_conditioned": sign_changes(frame[frame["A_exact1"] != 0]),
        "eligibility_sources": _eligibility(common),
        "bias": _bias(common),
        "mcnemar": _mcnemar(common),
        "clustered": _clustered(common),
        "critical_token_jaccard": {f"thr_{t}": _selection(frame, t, k) for t in THRESHOLDS},
        f"margin_lt_{MARGIN_SPLIT}": sign_changes(common[low_margin]),
        f"margin_ge_{MARGIN_SPLIT}": sign_changes(common[~low_margin]),
        "greedy_probe": _probes(frame, _saturation(records, frame)),
        "cache_instrumentation": _cache(frame),
        "prompt_only": _prompt_only(frame, common),
        "identity": {p: _identity(frame, p, k) for p in COMPARED},
        **_outcomes(records),
    }


def _share(count, total) -> float | None:
    return float(count / total) if total else None


def sign_changes(frame: pd.DataFrame) -> dict:
    """Counts and rates of sign changes over a set of pivots, re-feed beside the floor."""
    return {"refeed": _rates(frame, "refeed"), "floor": _rates(frame, "exact2")}


def _rates(frame: pd.DataFrame, compared: str) -> dict:
    flips = int(flipped(frame, compared).sum())
    reversals = int((frame["A_exact1"] * frame[f"A_{compared}"] < 0).sum())
    return {
        "n": len(frame),
        "flips": flips,
        "flip_rate": _share(flips, len(frame)),
        "zero_crossings": flips - reversals,
        "polarity_reversals": reversals,
        "polarity_rate": _share(reversals, len(frame)),
    }


def _eligibility(common: pd.DataFrame) -> dict:
    exact1, exact2, refeed = (common[f"A_{p}"] != 0 for p in PASSES)
    return {
        "exact1_nonzero": int(exact1.sum()),
        "only_refeed_nonzero": int((refeed & ~exact1 & ~exact2).sum()),
        "only_exact2_nonzero": int((exact2 & ~exact1 & ~refeed).sum()),
    }


def _one_sample_t(values: np.ndarray):
    """scipy's one-sample t test, or None where t is undefined: one value, or no variance."""
    if len(values) < 2 or np.ptp(values) < GRID_TOLERANCE:
        return None
    return stats.ttest_1samp(values, 0.0)


def _bias(common: pd.DataFrame) -> dict:
    """Mean of A_refeed - A_exact1 over the common set; interval mean +- 1.96 standard errors."""
    diffs = (common["A_refeed"] - common["A_exact1"]).to_numpy()
    test = _one_sample_t(diffs)
    mean = float(diffs.mean()) if len(diffs) else None
    half = 1.96 * float(stats.sem(diffs)) if len(diffs) > 1 else None
    return {
        "mean_diff": mean,
        "t": float(test.statistic) if test else None,
        "ci95": None if half is None else [mean - half, mean + half],
        "n": len(diffs),
    }


def _mcnemar(common: pd.DataFrame) -> dict:
    """Unclustered z = (b - c) / sqrt(b + c) over pivots that flip in one comparison only."""
    refeed, floor = flipped(common, "refeed"), flipped(common, "exact2")
    b, c = int((refeed & ~floor).sum()), int((floor & ~refeed).sum())
    z = (b - c) / np.sqrt(b + c) if b + c else None
    return {"b_refeed_only": b, "c_floor_only": c, "z": None if z is None else float(z)}


def _clustered(common: pd.DataFrame) -> dict:
    """Paired t over problems of (re-feed flips - floor flips) / eligible pivots (paper, Table 1).

    ``p`` is two-sided and ``ci95`` Student's interval of the mean, n_problems - 1 degrees of
    freedom.
    """
    surplus = flipped(common, "refeed").astype(int) - flipped(common, "exact2").astype(int)
    excess = surplus.groupby(common["problem_id"]).mean().to_numpy(float)
    test = _one_sample_t(excess)
    return {
        "n_problems": len(excess),
        "mean_excess": float(excess.mean()) if len(excess) else None,
        "t": float(test.statistic) if test else None,
        "p": float(test.pvalue) if test else None,
        "ci95": [float(bound) for bound in test.confidence_interval(0.95)] if test else None,
        "problems_refeed_worse": int((excess > 0).sum()),
        "problems_floor_worse": int((excess < 0).sum()),
        "problems_equal": int((excess == 0).sum()),
    }


def _selection(frame: pd.DataFrame, threshold: float, k: int) -> dict:
    """Overlap of the pivots with \\|A\\| >= threshold (paper 5.2); two empty sets have none.

    ``<name>_disagreements`` counts pivots selected in one of the two passes only, and
    ``<name>_within_quantum`` those of them with an estimate at most 1/K from the threshold.
    """
    size = {p: frame[f"A_{p}"].abs() for p in PASSES}
    selected = {p: size[p] >= threshold for p in PASSES}
    near = {p: (size[p] - threshold).abs() <= 1 / k + GRID_TOLERANCE for p in PASSES}
    result = {"n_exact1": int(selected["exact1"].sum())}
    for name, p in (("refeed", "refeed"), ("replica", "exact2")):
        differ = selected[p] ^ selected["exact1"]
        union = selected[p] | selected["exact1"]
        result[f"{name}_vs_exact1"] = _share((union & ~differ).sum(), union.sum())
        result[f"{name}_disagreements"] = int(differ.sum())
        result[f"{name}_within_quantum"] = int((differ & (near[p] | near["exact1"])).sum())
    return result


def _saturation(records: list[dict], frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Per compared pass: 1 where all compared first logprobs are 0.0, 0 where not, else NaN."""
    logprobs = {p: list(_first_logprobs(records, p)) for p in PASSES}
    result = {}
    for p in COMPARED:
        values = np.array([logprobs["exact1"], logprobs[p]], dtype=float).reshape(2, -1, len(ARMS))
        saturated = (values == 0.0).all(axis=(0, 2)).astype(float)
        saturated[np.isnan(values).any(axis=(0, 2))] = np.nan
        result[p] = pd.Series(saturated).loc[frame.index]
    return result


def _first_logprobs(records: list[dict], name: str) -> Iterator[list]:
    for record in records:
        probes = record.get(f"greedy_first_{name}") or {}
        yield [(probes.get(arm) or (None, None))[1] for arm in ARMS]


def _probes(frame: pd.DataFrame, saturation: dict[str, pd.Series]) -> dict:
    """The grading-free channel (paper 5.3).

    A float32 logprob of exactly 0.0 means a probability that rounds to 1, which two different
    computations reach alike; ``bit_exact_rate_unsaturated`` leaves out the pivots at which every
    compared logprob is such a 0.0. ``bit_exact_rate_decoded`` leaves out those of ``_prompt_only``.
    """
    divergence = frame[[f"greedy_divergence_{p}" for p in COMPARED]]
    result: dict = {"n_pivots": int(divergence.notna().any(axis=1).sum())}
    for p in COMPARED:
        diverged = frame[f"greedy_divergence_{p}"].dropna()
        delta = frame[f"greedy_first_logprob_delta_{p}"]
        known = np.sort(delta.dropna().to_numpy())
        nonzero = known[known > 0]
        unsaturated = delta[(saturation[p] == 0) & delta.notna()]
        decoded = delta[(frame["gen_index"] > frame["offset"]) & delta.notna()]
        result[p] = {
            "divergence_rate": _share(diverged.sum(), len(diverged)),
            "bit_exact_rate": _share((known == 0).sum(), len(known)),
            "bit_exact_rate_unsaturated": _share((unsaturated == 0).sum(), len(unsaturated)),
            "bit_exact_rate_decoded": _share((decoded == 0).sum(), len(decoded)),
            "n_saturated": int((saturation[p] == 1).sum()) if saturation[p].notna().any() else None,
            "p90_delta": float(known[int(0.9 * len(known))]) if len(known) else None,
            "median_nonzero_delta": float(nonzero[len(nonzero) // 2]) if len(nonzero) else None,
        }
    return result


def _cache(frame: pd.DataFrame) -> dict:
    """Cache hits of the exact passes and what spoils a pass; None where not recorded."""
    hits = frame[["cache_ok_exact1", "cache_ok_exact2"]].dropna()
    flags = {name: frame[column] == value for name, (column, value) in _FLAGS.items()}
    recorded = {name: frame[column].notna().any() for name, (column, _) in _FLAGS.items()}
    flagged = {name: int(flags[name].sum()) if recorded[name] else None for name in _FLAGS}
    pivots = int(pd.DataFrame(flags).any(axis=1).sum())
    borrowed = frame["borrowed_blocks"].dropna()
    return {
        "n_instrumented": len(hits),
        "exact1_ok_rate": _share(hits["cache_ok_exact1"].sum(), len(hits)),
        "exact2_ok_rate": _share(hits["cache_ok_exact2"].sum(), len(hits)),
        "flagged": flagged | {"pivots_flagged": pivots if any(recorded.values()) else None},
        "pivots_with_borrowed_blocks": int((borrowed > 0).sum()) if len(borrowed) else None,
    }


def _prompt_only(frame: pd.DataFrame, common: pd.DataFrame) -> dict:
    """Pivots so early that the resumed blocks hold prompt tokens only, no decoded one.

    The block boundary lies at generated index gen_index - offset. Where that is not positive the
    prompt was prefilled in every pass, and there is no decode-time state to lose.
    """
    return {
        name: int((part["gen_index"] <= part["offset"]).sum())
        if frame["offset"].notna().any()
        else None
        for name, part in (("n", frame), ("eligible", common))
    }


def _identity(frame: pd.DataFrame, compared: str, k: int) -> dict:
    """How much of each recorded channel equals exact pass 1 (paper 5.4).

    ``all_identical`` covers the recorded channels only; those not recorded have n = 0.
    """
    continuations = frame[f"continuations_equal_{compared}"].dropna()
    probes = frame[f"probe_equal_{compared}"].dropna()
    sequences = frame[f"greedy_divergence_{compared}"].dropna()
    first = frame[f"greedy_first_logprob_delta_{compared}"].dropna()
    counts = {
        "continuations": (continuations.sum(), 2 * k * len(continuations)),
        "probes": (probes.sum(), len(probes)),
        "probe_sequences": ((sequences == 0).sum(), len(sequences)),
        "probe_first_logprobs": ((first == 0).sum(), len(first)),
        "estimates": ((frame[f"A_{compared}"] == frame["A_exact1"]).sum(), len(frame)),
    }
    return {
        **{
            name: {"n": n, "identical": int(same), "share": _share(same, n)}
            for name, (same, n) in counts.items()
        },
        "all_identical": all(same == n for same, n in counts.values()) if len(frame) else None,
    }


def _outcomes(records: list[dict]) -> dict:
    """Shares of the graded outcomes of all continuations of a pass; None where not recorded."""
    rates: dict[str, dict | None] = {}
    names = dict.fromkeys(chain(PASSES, *(record.get("outcomes") or {} for record in records)))
    for p in names:
        graded = ((record.get("outcomes") or {}).get(p, {}).values() for record in records)
        counts = Counter(chain.from_iterable(chain.from_iterable(graded)))
        if unknown := set(counts) - set(OUTCOMES):
            raise ValueError(f"outcomes.{p} holds {sorted(unknown)}; known are {list(OUTCOMES)}")
        total = counts.total()
        rates[p] = {name: counts[name] / total for name in OUTCOMES} if total else None
    return {
        "truncated": {p: rate["truncated"] if rate else None for p, rate in rates.items()},
        "rates": rates,
    }
