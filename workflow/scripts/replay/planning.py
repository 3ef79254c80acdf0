"""How many continuations and problems a study needs, from what a finished run has measured."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import fft, stats
from statsmodels.stats.power import TTestPower

from replay.inference import problem_excess, ratio_interval
from replay.protocol import ARMS, PASSES, passes_of
from replay.storage import write_text
from replay.tables import UNDEFINED, markdown_table, number

LEVEL, POWER = 0.05, 0.8
TARGET_JACCARD = 0.9
K_GRID = (2, 4, 8, 16, 32)
PROBLEM_GRID = (10, 20, 40, 80, 160, 320)
# Settings in which configurations must agree for their K to be compared.
DESIGN = (
    "temperature",
    "top_p",
    "cont_temp",
    "margin_lt",
    "boundary_slack",
    "max_trunk_tokens",
    "max_cont_tokens",
)
# The model goes no further than this many times the stored K: that far simulated studies bear it
# out, beyond the fitted rates are guesses (as for unseen species: Good and Toulmin, 1956).
REACH = 2
# Success rates that an arm can have in the model, and steps of the fit of their distribution.
RATES = np.linspace(0, 1, 21)
FIT_STEPS = 200


def detectable_excess(differences: np.ndarray, n: int | None = None) -> dict:
    """The smallest mean excess that ``n`` problems show with 80% power, two-sided 5% level.

    Of a one-sample t test on the per-problem differences (paper, Table 1), whose power follows
    the noncentral t distribution (Cohen, Statistical Power Analysis, 1988, chapter 2); the
    standard deviation between problems is the observed one, ``n`` by default the observed number.
    ``excess`` is None for fewer than two problems, where all differences are equal, or where not
    even an excess of 1, the largest there is, would show.
    """
    observed = len(differences)
    n = observed if n is None else n
    sd = float(np.std(differences, ddof=1)) if observed > 1 else None
    if n < 2 or not sd or np.ptp(differences) < 1e-12:
        return {"n_problems": n, "sd": sd, "excess": None}
    size = TTestPower().solve_power(
        effect_size=None, nobs=n, alpha=LEVEL, power=POWER, alternative="two-sided"
    )
    excess = float(size * sd)
    return {"n_problems": n, "sd": sd, "excess": excess if excess <= 1 else None}


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

    ``by_k`` has an ``inference.ratio_interval`` for the stored K and each K of K_GRID up to REACH
    times that, and ``k_needed`` what ``k_needed`` finds there. All are None where no outcomes are
    stored, or one per arm, which says nothing about its rate.
    """
    stored = [record for record in records if record.get("outcomes")]
    if not stored or k < 2:
        return {"diverted": None, "by_k": None, "k_needed": None}
    one, other = (_right(stored, p) for p in PASSES[:2])
    posterior, kind = _posterior(one.sum(axis=2), k)
    cells = np.stack(np.meshgrid(RATES, RATES, indexing="ij"), axis=-1).reshape(-1, len(ARMS))
    # Differing outcomes that would be expected if every continuation were drawn anew.
    differing = k * (posterior @ (2 * cells * (1 - cells)).sum(axis=1))[kind].sum()
    diverted = min(1.0, float((one != other).sum() / differing)) if differing else 0.0
    _, problem = np.unique([record["problem_id"] for record in stored], return_inverse=True)

    def overlap(size: int, share: float) -> dict:
        tables = _pair_tables(cells, share)
        expected = (np.round(posterior @ p, 9) for p in _selected(tables, size, threshold))
        return ratio_interval(*(np.bincount(problem, p[kind]) for p in expected))

    models = {"same_seeds": diverted, "fresh_seeds": 1.0}
    by_k = [
        {"k": size} | {name: overlap(size, share) for name, share in models.items()}
        for size in sorted({k, *(size for size in K_GRID if size <= REACH * k)})
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


def _posterior(right: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each pair of RATES given counts of right continuations, [pivot, arm].

    Returns [kind, pair] and each pivot's kind: pivots with equal counts share a row.
    """
    pairs, kind, count = np.unique(right, axis=0, return_inverse=True, return_counts=True)
    likelihood = stats.binom.pmf(pairs[:, :, None], k, RATES)
    likelihood = (likelihood[:, 0, :, None] * likelihood[:, 1, None, :]).reshape(len(pairs), -1)
    prior = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(FIT_STEPS):
        posterior = _normalised(likelihood * prior)
        prior = count @ posterior / count.sum()
    return _normalised(likelihood * prior), kind.reshape(-1)


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


def same_design(rows: list[dict]) -> list[dict]:
    """The first row and those that differ from it in K, cohorts and pivots a rollout at most.

    ``rows`` are those of ``tables.table1`` with ``records``, the content of a records file.
    Sorted by K.
    """

    def design(row: dict) -> tuple:
        config = row["records"]["config"]
        datasets = {cohort["dataset"] for cohort in (config.get("cohorts") or {}).values()}
        return row["model"], row["numerics"], datasets, *(config.get(name) for name in DESIGN)

    alike = [row for row in rows if design(row) == design(rows[0])]
    return sorted(alike, key=lambda row: row["analysis"]["k"])


def observed_by_k(rows: list[dict]) -> list[dict]:
    """Replica overlap at 0.5 of each configuration of ``same_design``, on the problems all share.

    Each entry has ``k``, ``name``, ``label`` and the overlap ``shared``, a
    ``inference.ratio_interval``. Empty for fewer than two K.
    """
    alike = same_design(rows) if rows else []
    if len({row["analysis"]["k"] for row in alike}) < 2:
        return []
    sums = [pd.DataFrame(r["analysis"]["per_problem"]).set_index("problem_id") for r in alike]
    shared = sums[0].index
    for other in sums[1:]:
        shared = shared.intersection(other.index)
    return [
        {
            "k": row["analysis"]["k"],
            "name": row["name"],
            "label": row["label"],
            "shared": ratio_interval(
                table.loc[shared, "replica_both"], table.loc[shared, "replica_either"]
            ),
        }
        for row, table in zip(alike, sums, strict=True)
    ]


def plan_table(rows: list[dict]) -> pd.DataFrame:
    """What n problems with K continuations would show and cost, from the rows of ``same_design``.

    ``detectable_excess_pp`` is that of ``detectable_excess`` for the problems of n that would have
    eligible pivots, at the standard deviation and the share of eligible problems of the
    configuration ``sd_from``: the one with this K, else the first. ``replica_jaccard`` (same seeds)
    is what the configuration with this K observed, else the model of ``replica_overlap`` from the
    one with the largest K, which ``fresh_seeds_jaccard`` always is; empty beyond its reach.
    ``requests`` counts trunks, continuations and probes of all passes, without screening.
    """
    alike = same_design(rows)
    by_k = {row["analysis"]["k"]: row for row in reversed(alike)}
    by_k[rows[0]["analysis"]["k"]] = rows[0]
    return pd.DataFrame(
        [
            _planned(n, k, rows[0], by_k.get(k), alike[-1])
            for n in PROBLEM_GRID
            for k in sorted({*K_GRID, *by_k})
        ]
    )


def _planned(n: int, k: int, first: dict, observed: dict | None, deepest: dict) -> dict:
    source = observed or first
    excess = problem_excess(source["analysis"]["per_problem"])
    eligible = math.floor(n * len(excess) / len(source["records"]["per_problem"]))
    detectable = detectable_excess(excess, eligible)["excess"]
    modelled = deepest["analysis"]["replica_overlap"]["by_k"] or []
    model = {row["k"]: row for row in modelled}.get(k)
    if observed:
        overlap, basis = observed["analysis"]["intervals"]["replica_jaccard"], "observed"
    else:
        overlap, basis = (model["same_seeds"], "model") if model else ({"estimate": None}, "")
    pivots = first["analysis"]["n_records"] / len(first["records"]["per_problem"])
    requests = first["records"]["config"]["rollouts"]
    requests += pivots * len(passes_of(first["records"])) * len(ARMS) * (k + 1)
    return {
        "problems": n,
        "k": k,
        "detectable_excess_pp": None if detectable is None else 100 * detectable,
        "sd_from": source["name"],
        "replica_jaccard": overlap["estimate"],
        "replica_jaccard_basis": basis,
        "fresh_seeds_jaccard": model["fresh_seeds"]["estimate"] if model else None,
        "requests": math.ceil(n * requests),
    }


def write_plan(rows: list[dict], csv: str | Path, markdown: str | Path) -> None:
    """Write ``plan_table`` as CSV, and with its inputs and assumptions as Markdown."""
    table = plan_table(rows)
    write_text(csv, table.to_csv(index=False, float_format="%.8g"))
    write_text(markdown, _plan_text(rows, table))


def _plan_text(rows: list[dict], table: pd.DataFrame) -> str:
    printed = pd.DataFrame(
        {
            "Problems": table["problems"].astype(str),
            "K": table["k"].astype(str),
            "Detectable excess (pp)": [number(v, ".1f") for v in table["detectable_excess_pp"]],
            "Replica Jaccard": [
                f"{number(value, '.2f')} {basis}".strip()
                for value, basis in zip(
                    table["replica_jaccard"], table["replica_jaccard_basis"], strict=True
                )
            ],
            "Jaccard, fresh seeds": [number(v, ".2f") for v in table["fresh_seeds_jaccard"]],
            "Requests": [f"{value:,d}" for value in table["requests"]],
            "SD from": table["sd_from"],
        }
    )
    alike = same_design(rows)
    inputs = pd.DataFrame([_inputs(row) for row in alike])
    found = [markdown_table(_observed_text(by_k), 2)] if (by_k := observed_by_k(rows)) else []
    return "\n".join(
        [
            f"# How large a study must be, planned from “{rows[0]['label']}”\n",
            markdown_table(printed, 0),
            f"Detectable excess: the smallest mean over problems of re-feed minus floor rate that a"
            f" two-sided t test at the {LEVEL:.0%} level finds with {POWER:.0%} power, if problems"
            " vary as they did in the configuration under “SD from”.\n",
            f"{_overlap_note(alike[-1])}\n",
            "Requests: trunks, and continuations and one probe for both arms in three passes;"
            " screening comes on top.\n",
            "## What it was planned from\n",
            markdown_table(inputs, 1),
            "## Continuations needed\n",
            needed_sentence(rows) + "\n",
            *found,
        ]
    )


def _overlap_note(deepest: dict) -> str:
    """What the columns of overlap are; ``deepest`` is the configuration with the largest K."""
    note = "Replica Jaccard: overlap of two exact passes' selections at 0.5 with the same seeds, "
    if not deepest["analysis"]["replica_overlap"]["by_k"]:
        return f"{note}where it was observed at this K; elsewhere ({UNDEFINED}) a pilot is needed."
    return (
        f"{note}observed at this K or from the model; with fresh seeds always from the model. The"
        " model takes continuations as independent, with success rates fitted to the stored"
        f" outcomes of “{deepest['label']}”, and goes up to {REACH} times its K, where it is off by"
        f" some 0.05 in simulations: beyond ({UNDEFINED}) a pilot is needed."
    )


def _inputs(row: dict) -> dict:
    analysis, measured = row["analysis"], len(row["records"]["per_problem"])
    power = analysis["detectable_excess"]
    return {
        "Configuration": row["label"],
        "K": str(analysis["k"]),
        "Problems": str(measured),
        "With eligible pivots": str(power["n_problems"]),
        "SD over problems (pp)": number(power["sd"] and 100 * power["sd"], ".1f"),
        "Pivots a problem": f"{analysis['n_records'] / measured:.1f}",
        "Rollouts a problem": str(row["records"]["config"]["rollouts"]),
    }


def _observed_text(by_k: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Configuration": row["label"],
                "K": str(row["k"]),
                "Replica Jaccard on shared problems": number(row["shared"]["estimate"], ".2f"),
                "95% interval": "{:.2f} to {:.2f}".format(*row["shared"]["ci95"])
                if row["shared"]["ci95"]
                else row["shared"]["undefined"],
                "Problems": str(row["shared"]["n_problems"]),
            }
            for row in by_k
        ]
    )


def needed_sentence(rows: list[dict]) -> str:
    """At which K a replica's selection overlaps at TARGET_JACCARD: observed, and by the model."""
    by_k = observed_by_k(rows)
    if by_k:
        tried = ", ".join(f"{number(r['shared']['estimate'], '.2f')} at K={r['k']}" for r in by_k)
        observed = f"Observed replica overlap on shared problems: {tried}; {TARGET_JACCARD} is "
        observed += _reached(k_needed(by_k, "shared"), by_k[-1]["k"])
    else:
        observed = "No two configurations differ in K alone, so nothing is observed over K"
    deepest = same_design(rows)[-1]
    label, overlap = deepest["label"], deepest["analysis"]["replica_overlap"]
    if not overlap["by_k"]:
        return f"{observed}. Outcomes to model other K from are not stored for “{label}”."
    last = overlap["by_k"][-1]["k"]
    same, fresh = (
        _reached(overlap["k_needed"][name], last) for name in ("same_seeds", "fresh_seeds")
    )
    return (
        f"{observed}. By the model from the outcomes of “{label}”, {TARGET_JACCARD} is {same} with"
        f" the same seeds and {fresh} with fresh seeds."
    )


def _reached(k: int | None, last: int) -> str:
    return f"not reached up to K={last}" if k is None else f"reached at K={k}"
