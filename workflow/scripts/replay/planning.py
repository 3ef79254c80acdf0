"""How many continuations and problems a study needs, from what a finished run has measured."""

import numpy as np
from scipy import fft, stats
from statsmodels.stats.power import TTestPower

from replay.inference import ratio_interval
from replay.protocol import ARMS, PASSES

LEVEL, POWER = 0.05, 0.8
TARGET_JACCARD = 0.9
K_GRID = (2, 4, 8, 16, 32)
PROBLEM_GRID = (10, 20, 40, 80, 160, 320)
# Success rates that an arm can have in the model, and steps of the fit of their distribution.
RATES = np.linspace(0, 1, 21)
FIT_STEPS = 200


def detectable_excess(differences: np.ndarray, n: int | None = None) -> dict:
    """The smallest mean excess that ``n`` problems show with 80% power, two-sided 5% level.

    Of a one-sample t test on the per-problem differences (paper, Table 1), whose power follows
    the noncentral t distribution (Cohen, Statistical Power Analysis, 1988, chapter 2); the
    standard deviation between problems is the observed one, ``n`` by default the observed number.
    ``excess`` is None for fewer than two problems, or where all differences are equal.
    """
    observed = len(differences)
    n = observed if n is None else n
    sd = float(np.std(differences, ddof=1)) if observed > 1 else None
    if n < 2 or not sd or np.ptp(differences) < 1e-12:
        return {"n_problems": n, "sd": sd, "excess": None}
    size = TTestPower().solve_power(
        effect_size=None, nobs=n, alpha=LEVEL, power=POWER, alternative="two-sided"
    )
    return {"n_problems": n, "sd": sd, "excess": float(size * sd)}


def replica_overlap(records: list[dict], k: int, threshold: float) -> dict:
    """Jaccard overlap at ``threshold`` that two passes with other numbers of continuations have.

    The model: continuations are independent and right with a rate of their arm; in the second pass
    each is diverted with probability ``diverted`` and then drawn anew, else it ends as before.
    ``same_seeds`` uses the probability that explains how many stored outcomes differ between the
    exact passes, one for the configuration; ``fresh_seeds`` is two passes with other seeds, all
    diverted. The joint distribution of the two arms' rates over pivots is fitted to the stored
    outcomes of exact pass 1 (nonparametric maximum likelihood on a grid by EM: Laird, JASA 1978),
    and each pivot has its posterior. Overlap is expected pivots in both selections over expected
    pivots in either. Intervals resample problems and leave the fit as it is.

    ``by_k`` has an ``inference.ratio_interval`` for each K of K_GRID and the observed one, and
    ``k_needed`` what ``k_needed`` finds. All are None where no outcomes are stored, or one per arm,
    which says nothing about its rate.
    """
    stored = [record for record in records if record.get("outcomes")]
    if not stored or k < 2:
        return {"diverted": None, "by_k": None, "k_needed": None}
    one, other = (_right(stored, p) for p in PASSES[:2])
    posterior = _posterior(one.sum(axis=2), k)
    cells = np.stack(np.meshgrid(RATES, RATES, indexing="ij"), axis=-1).reshape(-1, len(ARMS))
    # Differing outcomes that would be expected if every continuation were drawn anew.
    differing = k * (posterior @ (2 * cells * (1 - cells)).sum(axis=1)).sum()
    diverted = min(1.0, float((one != other).sum() / differing)) if differing else 0.0
    _, problem = np.unique([record["problem_id"] for record in stored], return_inverse=True)

    def overlap(size: int, share: float) -> dict:
        expected = (posterior @ p for p in _selected(_pair_tables(cells, share), size, threshold))
        return ratio_interval(*(np.bincount(problem, p) for p in expected))

    models = {"same_seeds": diverted, "fresh_seeds": 1.0}
    by_k = [
        {"k": size} | {name: overlap(size, share) for name, share in models.items()}
        for size in sorted({*K_GRID, k})
    ]
    needed = {name: k_needed(by_k, name) for name in models}
    return {"diverted": diverted, "by_k": by_k, "k_needed": needed}


def k_needed(by_k: list[dict], name: str) -> int | None:
    """The smallest K from which on the overlap is at least TARGET_JACCARD at every K tried.

    None where it is not reached up to the largest K tried: nothing is extrapolated.
    """
    found = None
    for row in reversed(by_k):
        overlap = row[name]["estimate"]
        if overlap is None or overlap < TARGET_JACCARD:
            break
        found = row["k"]
    return found


def _right(records: list[dict], name: str) -> np.ndarray:
    """Which continuations of a pass are right: [pivot, arm, k]."""
    return np.array(
        [[[o == "right" for o in r["outcomes"][name][arm]] for arm in ARMS] for r in records]
    )


def _posterior(right: np.ndarray, k: int) -> np.ndarray:
    """Probability of each pair of RATES, [pivot, pair], given counts of right ones [pivot, arm]."""
    pairs, kind, count = np.unique(right, axis=0, return_inverse=True, return_counts=True)
    likelihood = stats.binom.pmf(pairs[:, :, None], k, RATES)
    likelihood = (likelihood[:, 0, :, None] * likelihood[:, 1, None, :]).reshape(len(pairs), -1)
    prior = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(FIT_STEPS):
        posterior = _normalised(likelihood * prior)
        prior = count @ posterior / count.sum()
    return _normalised(likelihood * prior)[kind.reshape(-1)]


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=1, keepdims=True)


def _pair_tables(rates: np.ndarray, diverted: float) -> np.ndarray:
    """Probability of (right in one pass, right in the other): [..., 2, 2] for rates [...]."""
    outcome = np.stack([1 - rates, rates], axis=-1)
    independent = outcome[..., :, None] * outcome[..., None, :]
    return diverted * independent + (1 - diverted) * outcome[..., None] * np.eye(2)


def _selected(tables: np.ndarray, k: int, threshold: float) -> list[np.ndarray]:
    """Probability that an estimate is selected in both passes, and in either, per row of tables.

    ``tables`` is [row, arm, 2, 2]. The K draws of an arm add up, and the alternative arm counts
    its wrong ones where it would subtract its right ones, so the joint distribution of the two
    passes' estimates, in units of 1/K from -K, is a convolution of 2K tables.
    """
    selected = np.abs(np.arange(-k, k + 1)) >= threshold * k - 1e-9
    shape = (2 * k + 1, 2 * k + 1)
    actual, alternative = tables[:, 0], tables[:, 1, ::-1, ::-1]
    joint = fft.ifft2(fft.fft2(actual, shape) ** k * fft.fft2(alternative, shape) ** k).real
    both = joint[:, selected][:, :, selected].sum(axis=(1, 2))
    neither = joint[:, ~selected][:, :, ~selected].sum(axis=(1, 2))
    # The transform leaves 1e-15 where a probability is 0.
    either = np.round(1 - neither, 12)
    return [np.minimum(np.round(both, 12), either), either]
