"""Intervals and exact tests in which problems, not pivots, are what was sampled.

Pivots of one problem are alike, so intervals resample whole problems and tests change the sign of
a whole problem's difference. Whatever is undefined is None, and an interval says why.
"""

import warnings
from collections.abc import Iterable

import numpy as np
from scipy import stats

SEED = 0
RESAMPLES = 10_000
CONFIDENCE = 0.95
# Resampled indices held at once, to bound memory.
BATCH = 5_000_000
# Sign flips are enumerated by halves up to here: 2 lists of 2^20 sums. Beyond, Monte Carlo.
EXACT_PROBLEMS = 40


def problem_excess(sums: dict) -> np.ndarray:
    """Per problem with eligible pivots: re-feed minus floor flips, per eligible pivot (Table 1).

    ``sums`` has one entry a problem in ``refeed_flips``, ``floor_flips`` and ``eligible``.
    """
    refeed, floor, eligible = (
        np.asarray(sums[name]) for name in ("refeed_flips", "floor_flips", "eligible")
    )
    counted = eligible > 0
    return (refeed - floor)[counted] / eligible[counted]


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, resamples: int = RESAMPLES
) -> dict:
    """A ratio of two sums over problems, with its bias-corrected and accelerated interval.

    One entry a problem in both arrays. Problems are resampled with replacement and the two sums
    taken anew (Efron, Better bootstrap confidence intervals, JASA 1987; the acceleration is the
    jackknife's); the seed is fixed. Problems with zero in both sums carry no information on a
    ratio and are left out, so that no resample consists of them alone.

    ``ci95`` is None where the interval is undefined, and ``undefined`` then says why: "no
    denominator" (the estimate is None as well), "one problem", "no variance" (the same ratio in
    every problem, so there is no acceleration), "empty resamples" (some resample has no
    denominator) or "no acceleration".
    """
    x, d = np.asarray(numerator, float), np.asarray(denominator, float)
    informative = (x != 0) | (d != 0)
    x, d = x[informative], d[informative]
    result = {"estimate": None, "ci95": None, "n_problems": len(x), "undefined": None}
    if not d.sum():
        return result | {"undefined": "no denominator"}
    result["estimate"] = float(x.sum() / d.sum())
    if len(x) == 1:
        return result | {"undefined": "one problem"}
    if np.allclose(x, result["estimate"] * d, rtol=0, atol=1e-12):
        return result | {"undefined": "no variance"}

    def ratio(index: np.ndarray, axis: int) -> np.ndarray:
        return x[index].sum(axis=axis) / d[index].sum(axis=axis)

    # What scipy warns of is what `undefined` reports.
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        bootstrap = stats.bootstrap(
            (np.arange(len(x)),),
            ratio,
            n_resamples=resamples,
            batch=max(1, BATCH // len(x)),
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(SEED),
        )
    if not np.isfinite(bootstrap.bootstrap_distribution).all():
        return result | {"undefined": "empty resamples"}
    interval = [float(bound) for bound in bootstrap.confidence_interval]
    if not np.isfinite(interval).all():
        return result | {"undefined": "no acceleration"}
    return result | {"ci95": interval}


def sign_test(differences: np.ndarray) -> dict:
    """Exact two-sided sign test of the per-problem differences; zeros are left out.

    ``p`` is None where no difference is left. One problem gives 1.
    """
    signs = np.sign(differences)
    n = int(np.count_nonzero(signs))
    return {"p": _binomial_p(int((signs > 0).sum()), n), "n": n}


def sign_flip_test(differences: np.ndarray, resamples: int = RESAMPLES) -> dict:
    """Two-sided permutation test of a zero mean: under the null each sign is a fair coin.

    p is the share of the 2^n sign assignments whose sum is at least as large in size as the
    observed one (Fisher, The Design of Experiments, 1935, section 21). Zeros change no sum and
    are left out. Up to EXACT_PROBLEMS differences all assignments are counted (``method``
    "exact"), beyond that a seeded sample of them ("Monte Carlo", at least 2 / (resamples + 1)).

    ``p`` is None where no difference is left. One problem gives 1.
    """
    values = np.asarray(differences, float)
    values = values[values != 0]
    if not len(values):
        return {"p": None, "n": 0, "method": None}
    if len(values) <= EXACT_PROBLEMS:
        return {"p": _exact_sign_flip_p(values), "n": len(values), "method": "exact"}
    test = stats.permutation_test(
        (values,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, BATCH // len(values)),
        rng=np.random.default_rng(SEED),
    )
    return {"p": float(test.pvalue), "n": len(values), "method": "Monte Carlo"}


def _exact_sign_flip_p(values: np.ndarray) -> float:
    """Every sum is one of each half's: pairs are counted in sorted lists instead of listed."""
    observed = abs(values.sum()) - 1e-9 * np.abs(values).sum()
    if observed <= 0:
        return 1.0
    # Sizes sorted first: the result must not depend on the order of the problems.
    sizes = np.sort(np.abs(values))
    one, other = (np.sort(_signed_sums(half)) for half in (sizes[::2], sizes[1::2]))
    reached = len(one) - np.searchsorted(one, observed - other, side="left")
    return float(min(1.0, 2 * reached.sum() / 2.0 ** len(values)))


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def mcnemar_test(b: int, c: int) -> dict:
    """McNemar's exact two-sided test: ``b`` and ``c`` pivots flip in one comparison only.

    It ignores that pivots of one problem are alike. ``p`` is None where no pivot does.
    """
    return {"p": _binomial_p(b, b + c), "n": b + c}


def _binomial_p(successes: int, n: int) -> float | None:
    return float(stats.binomtest(successes, n, 0.5).pvalue) if n else None


def holm(p_values: Iterable[float | None]) -> list[float | None]:
    """Holm's step-down adjustment over the p values that are defined; the others stay None.

    That of statsmodels gives the same, but collects garbage at every call: 0.2 s each, in a page.
    """
    p_values = list(p_values)
    ordered = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(ordered):
        highest = max(highest, min(1.0, p * (len(ordered) - rank)))
        adjusted[place] = highest
    return adjusted
