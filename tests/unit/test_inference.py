"""Intervals and tests against brute force, libraries, and simulations with known truth."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from replay import inference
from replay.inference import (
    holm,
    mcnemar_test,
    problem_excess,
    ratio_interval,
    sign_flip_test,
    sign_test,
)

UNDEFINED = {"ci95": None}


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [
        ([], [], {"estimate": None, "n_problems": 0, "undefined": "no denominator"}),
        ([0, 0], [0, 0], {"estimate": None, "n_problems": 0, "undefined": "no denominator"}),
        ([2], [0], {"estimate": None, "n_problems": 1, "undefined": "no denominator"}),
        ([1, 0], [4, 0], {"estimate": 0.25, "n_problems": 1, "undefined": "one problem"}),
        ([0, 0, 0], [3, 1, 2], {"estimate": 0.0, "n_problems": 3, "undefined": "no variance"}),
        ([1, 2, 3], [3, 6, 9], {"estimate": 1 / 3, "n_problems": 3, "undefined": "no variance"}),
        ([3, 1], [1, 0], {"estimate": 4.0, "n_problems": 2, "undefined": "empty resamples"}),
    ],
)
def test_undefined_intervals_say_why(numerator, denominator, expected):
    result = ratio_interval(np.array(numerator), np.array(denominator))
    assert result == pytest.approx(expected | UNDEFINED)


def test_bca_by_its_formula():
    """Efron (1987) by hand, on the resamples that the seed gives."""
    x, d = np.array([3.0, 0, 1, 4, 2, 0, 1, 5]), np.array([8.0, 5, 9, 6, 7, 4, 3, 10])
    rng = np.random.default_rng(inference.SEED)
    index = rng.integers(0, len(x), (2000, len(x)))
    resampled = x[index].sum(axis=1) / d[index].sum(axis=1)
    estimate = x.sum() / d.sum()
    below = ((resampled < estimate).mean() + (resampled <= estimate).mean()) / 2
    jackknife = (x.sum() - x) / (d.sum() - d)
    influence = jackknife.mean() - jackknife
    a = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
    z0 = stats.norm.ppf(below)
    z = z0 + stats.norm.ppf([0.025, 0.975])
    expected = np.quantile(resampled, stats.norm.cdf(z0 + z / (1 - a * z)))
    assert ratio_interval(x, d, resamples=2000)["ci95"] == pytest.approx(expected.tolist())


def test_bca_covers_the_true_ratio():
    """Problems of unequal size and unequal rates; 400 studies of 40 problems each.

    Coverage near 95% with a binomial standard error of 1.1 points; the bootstrap is known to fall
    somewhat short at this number of clusters.
    """
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        size = rng.integers(1, 30, 40)
        flips = rng.binomial(size, rng.beta(2, 4, 40))
        low, high = ratio_interval(flips, size, resamples=1000)["ci95"]
        covered += low <= 2 / 6 <= high
    assert 0.91 <= covered / 400 <= 0.98


sums = st.lists(
    st.integers(1, 30).flatmap(lambda d: st.tuples(st.integers(0, d), st.just(d))),
    min_size=2,
    max_size=40,
)


@given(sums)
@settings(max_examples=60)
def test_interval_lies_in_range_and_repeats(pairs):
    x, d = np.array(pairs).T
    one, other = (ratio_interval(x, d, resamples=500) for _ in range(2))
    assert one == other
    if one["ci95"]:
        low, high = one["ci95"]
        assert 0 <= low <= high <= 1
    else:
        assert one["undefined"]


@given(sums.filter(lambda pairs: len(pairs) >= 10))
@settings(max_examples=60)
def test_interval_of_ten_problems_or_more_holds_the_estimate(pairs):
    """BCa promises this only where the bias correction is moderate, as it is for these sums."""
    result = ratio_interval(*np.array(pairs).T, resamples=1000)
    if result["ci95"]:
        low, high = result["ci95"]
        assert low - 1e-12 <= result["estimate"] <= high + 1e-12


def brute_force(values):
    """The share of sign assignments with a sum at least as large, in exact fractions."""
    values = [v for v in map(Fraction, values) if v]
    observed = abs(sum(values))
    reached = sum(
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= observed
        for signs in product((1, -1), repeat=len(values))
    )
    return reached / 2 ** len(values)


fractions = st.lists(
    st.integers(1, 12).flatmap(lambda d: st.integers(-d, d).map(lambda x: Fraction(x, d))),
    min_size=1,
    max_size=9,
).filter(any)


@given(fractions)
@settings(max_examples=60)
def test_sign_flips_equal_enumeration(values):
    result = sign_flip_test(np.array([float(v) for v in values]))
    assert result["p"] == brute_force(values)
    assert (result["method"], result["n"]) == ("exact", sum(map(bool, values)))


@given(fractions, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_tests_depend_on_neither_order_nor_direction(values, random):
    values = [float(v) for v in values]
    shuffled = random.sample(values, len(values))
    for test in (sign_test, sign_flip_test):
        assert test(np.array(values)) == test(np.array(shuffled)) == test(-np.array(values))


def test_sign_flips_equal_scipy_on_ten_problems():
    values = np.random.default_rng(3).normal(0.4, 1, 10)
    expected = stats.permutation_test(
        (values,), np.sum, permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    assert sign_flip_test(values)["p"] == pytest.approx(expected.pvalue)


def test_exact_and_monte_carlo_agree(monkeypatch):
    values = np.random.default_rng(4).normal(0.3, 1, 30)
    exact = sign_flip_test(values)["p"]
    monkeypatch.setattr(inference, "EXACT_PROBLEMS", 10)
    sampled, again = sign_flip_test(values), sign_flip_test(values)
    assert sampled["method"] == "Monte Carlo" and sampled == again
    assert 0.02 < exact < 0.5
    assert sampled["p"] == pytest.approx(exact, abs=4 * (exact / 10_000) ** 0.5)


def test_p_is_uniform_under_the_null():
    """1,000 null studies: p is a valid level, and uniform up to its steps (Kolmogorov-Smirnov)."""
    rng = np.random.default_rng(5)
    p = [sign_flip_test(rng.normal(0, rng.uniform(0.5, 2, 14)))["p"] for _ in range(1000)]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(p) <= level) <= level + 3 * (level / 1000) ** 0.5


def test_forty_problems_are_counted_exactly():
    """All of one size: the sum is a binomial."""
    values = np.where(np.arange(40) < 28, 0.25, -0.25)
    result = sign_flip_test(values)
    assert result["method"] == "exact"
    assert result["p"] == pytest.approx(stats.binomtest(28, 40).pvalue, rel=1e-12)


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_no_difference_has_no_p(values):
    assert sign_test(np.array(values)) == {"p": None, "n": 0}
    assert sign_flip_test(np.array(values)) == {"p": None, "n": 0, "method": None}


def test_one_problem_proves_nothing():
    assert sign_test(np.array([0.5]))["p"] == sign_flip_test(np.array([0.5]))["p"] == 1.0


def test_sign_test_by_hand():
    # Four of four: 2 * 0.5^4. Zeros are left out.
    assert sign_test(np.array([0.1, 0.2, 0.0, 0.3, 0.4])) == {"p": 0.125, "n": 4}


@pytest.mark.parametrize(("b", "c"), [(4, 2), (0, 3), (10, 1), (25, 25)])
def test_mcnemar_equals_statsmodels(b, c):
    expected = mcnemar([[0, b], [c, 0]], exact=True).pvalue
    assert mcnemar_test(b, c) == {"p": pytest.approx(expected), "n": b + c}


def test_mcnemar_without_discordant_pivots():
    assert mcnemar_test(0, 0) == {"p": None, "n": 0}


def test_holm_by_hand():
    # Ordered .01, .02, .04: times 3, 2, 1, and never below the one before.
    assert holm([0.04, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([None]) == [None] and holm([]) == []


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8))
@settings(max_examples=30)
def test_holm_keeps_the_order_and_never_lowers_a_p(p_values):
    adjusted = holm(p_values)
    pairs = sorted((p, q) for p, q in zip(p_values, adjusted, strict=True) if p is not None)
    assert [q for _, q in pairs] == sorted(q for _, q in pairs)
    assert all(p <= q <= 1 for p, q in pairs)
    assert [p is None for p in p_values] == [q is None for q in adjusted]


def test_problem_excess_leaves_out_problems_without_eligible_pivots():
    sums = {"eligible": [4, 0, 2], "refeed_flips": [2, 0, 1], "floor_flips": [1, 0, 2]}
    assert problem_excess(sums).tolist() == [0.25, -0.5]
