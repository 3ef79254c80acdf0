"""The paper's claims, each beside the value recomputed from the published records.

``CLAIMS`` follows the paper from the abstract to section 5.5. A claim with numbers is recomputed at
the precision in which it is printed and matches if it then reads the same. A statement without a
number names, under ``quantity``, the condition that decides it. Formulas are those of the analysis.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from replay.analysis import (
    MARGIN_SPLIT,
    clustered_given_exact1,
    common_set,
    flipped,
    pivot_frame,
)
from replay.protocol import ARMS, COMPARED, EXACT
from replay.storage import write_text
from replay.tables import UNDEFINED, excess_pp, number

COLUMNS = ("id", "section", "quantity", "claimed", "recomputed", "verdict")
MATCH, DIFFERS, NOT_DERIVABLE = "match", "differs", "not derivable"

CAMPAIGN2 = ("main", "k8", "k16", "phi")
STOCK = ("main", "k8", "k16", "greedy", "grpo", "phi")
ALL = (*STOCK, "batchinv")
FIGURE3 = ("main", "k8", "phi")
K_STEPS = ("main", "k8", "k16")
LABELS = {
    "main": "pooled main",
    "k8": "K=8",
    "k16": "K=16",
    "greedy": "greedy",
    "grpo": "GRPO",
    "phi": "Phi-4-mini",
    "batchinv": "batch-invariant",
}
LEVEL = 0.05
BLOCK = 16
THRESHOLD = "critical_token_jaccard/thr_0.5"
PRINTED_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:×10\^-?\d+)?")


class NotDerivable(Exception):
    """Why a claim cannot be recomputed from the records at hand."""


@dataclass(frozen=True)
class Decided:
    """Whether a statement holds, and the values that say so."""

    holds: bool
    shown: str


@dataclass(frozen=True)
class Evidence:
    """Records and analyses by configuration; ``absent`` maps the others to the files they lack."""

    contents: dict[str, tuple[dict, dict]]
    absent: dict[str, list[str]]

    def of(self, names: Sequence[str]) -> list[tuple[dict, dict]]:
        """(records, analysis) of each configuration; NotDerivable if any of them is absent."""
        files = [file for name in names for file in self.absent.get(name, [])]
        if files:
            raise NotDerivable(f"absent: {', '.join(files)}")
        return [self.contents[name] for name in names]

    def records(self, name: str) -> dict:
        return self.of([name])[0][0]

    def pivots(self, name: str) -> list[dict]:
        return self.records(name)["pivots"]

    def analysis(self, name: str) -> dict:
        return self.of([name])[0][1]

    def frame(self, name: str) -> pd.DataFrame:
        return pivot_frame(self.pivots(name), self.records(name)["config"]["k"])


Recompute = Callable[[Evidence], Decided | Sequence[float | None]]


@dataclass(frozen=True)
class Claim:
    """One claim; ``recompute`` gives the numbers that ``claimed`` prints, or a Decided."""

    id: str
    section: str
    quantity: str
    claimed: str
    recompute: Recompute


def check(contents: dict[str, tuple[dict, dict]], absent: dict[str, list[str]]) -> pd.DataFrame:
    """One row a claim, with ``COLUMNS``.

    ``contents`` maps configurations to their records file's content and their analysis. The reason
    why a claim is not derivable stands under ``recomputed``.
    """
    evidence = Evidence(contents, absent)
    rows = [(c.id, c.section, c.quantity, c.claimed, *_verdict(c, evidence)) for c in CLAIMS]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _verdict(claim: Claim, evidence: Evidence) -> tuple[str, str]:
    try:
        result = claim.recompute(evidence)
    except NotDerivable as reason:
        return str(reason), NOT_DERIVABLE
    if isinstance(result, Decided):
        return result.shown, MATCH if result.holds else DIFFERS
    text = as_printed(claim.claimed, result)
    return text, MATCH if text == claim.claimed else DIFFERS


def as_printed(claimed: str, values: Sequence[float | None]) -> str:
    """``claimed`` with its numbers replaced by ``values``, at the precision of those numbers.

    A claimed em dash stands for an undefined value. Raises ValueError if the counts differ.
    """
    if claimed == UNDEFINED:
        return number(values[0], ".4g")
    rest = iter(values)
    text = PRINTED_NUMBER.sub(lambda match: _like(match[0], next(rest)), claimed)
    if next(rest, rest) is not rest:
        raise ValueError(f"{claimed!r} prints fewer numbers than {list(values)}")
    return text


def _like(printed: str, value: float | None) -> str:
    """``value`` with the decimals, the sign and the separators of ``printed``."""
    mantissa, _, exponent = printed.partition("×10^")
    decimals = len(mantissa.partition(".")[2])
    if exponent:
        digits, _, power = number(value, f".{decimals}e").partition("e")
        return f"{digits}×10^{int(power)}"
    sign, comma = "+" * printed.startswith("+"), "," * ("," in printed)
    return number(value, f"{sign}z{comma}.{decimals}f")


def write_claims(claims: pd.DataFrame, path: Path | str) -> None:
    write_text(path, claims.to_csv(index=False))


# What claims are made of. A path leads through an analysis: keys, parted by slashes.


def _dig(analysis: dict, path: str) -> float | None:
    value = analysis
    for key in path.split("/"):
        value = value[key]
    return value


def at(name: str, *paths: str, scale: float = 1) -> Recompute:
    """The values under ``paths`` of one configuration's analysis."""

    def recompute(evidence: Evidence) -> list[float | None]:
        values = [_dig(evidence.analysis(name), path) for path in paths]
        return [None if value is None else scale * value for value in values]

    return recompute


def exactly_one(name: str, path: str, scale: int = 1, unit: str = "") -> Recompute:
    """Whether the value under ``path`` is 1 without rounding."""

    def recompute(evidence: Evidence) -> Decided:
        found = _dig(evidence.analysis(name), path)
        return Decided(found == 1, number(found and scale * found, ".6g") + unit)

    return recompute


def one(recompute: Recompute, evidence: Evidence) -> float:
    """The only value of ``recompute``; NotDerivable if it is undefined."""
    (value,) = recompute(evidence)
    if value is None:
        raise NotDerivable("undefined in these records")
    return value


def percent(name: str, *paths: str) -> Recompute:
    return at(name, *paths, scale=100)


def excess(name: str, part: str = "common_set") -> Recompute:
    """Re-feed minus floor, percentage points, before rounding."""
    return lambda evidence: [excess_pp({"common_set": evidence.analysis(name)[part]})]


def over(names: Sequence[str], value: Callable[[str], Recompute]) -> Recompute:
    """The smallest and the largest of one value over configurations."""

    def recompute(evidence: Evidence) -> list[float]:
        evidence.of(names)
        values = {name: value(name)(evidence)[0] for name in names}
        undefined = [LABELS[name] for name, v in values.items() if v is None]
        if undefined:
            raise NotDerivable(f"undefined for {', '.join(undefined)}")
        return [min(values.values()), max(values.values())]

    return recompute


def setting(names: Sequence[str], path: str) -> Recompute:
    """A setting that the record files of ``names`` share."""

    def recompute(evidence: Evidence) -> list[float | None]:
        files = evidence.of(names)
        values = {_dig(records["config"]["sections"], path) for records, _ in files}
        return [values.pop() if len(values) == 1 else None]

    return recompute


def everywhere(names: Sequence[str], holds: Callable[[Evidence, str], Decided]) -> Recompute:
    """A statement on each of several configurations."""

    def recompute(evidence: Evidence) -> Decided:
        evidence.of(names)
        parts = {name: holds(evidence, name) for name in names}
        shown = "; ".join(f"{LABELS[name]} {part.shown}" for name, part in parts.items())
        return Decided(all(part.holds for part in parts.values()), shown)

    return recompute


def not_derivable(reason: str) -> Recompute:
    def recompute(evidence: Evidence) -> Decided:
        raise NotDerivable(reason)

    return recompute


# Statements without a number, and values that no analysis holds.


def mostly_zero_crossings(evidence: Evidence, name: str) -> Decided:
    side = evidence.analysis(name)["common_set"]["refeed"]
    return Decided(
        2 * side["zero_crossings"] > side["flips"], f"{side['zero_crossings']} of {side['flips']}"
    )


def mean_zero(evidence: Evidence) -> Decided:
    low, high = bias_interval(evidence)
    t = number(evidence.analysis("main")["bias"]["t"], ".2f")
    return Decided(low <= 0 <= high, f"[{low:+.3f}, {high:+.3f}], t = {t}")


def bias_interval(evidence: Evidence) -> list[float]:
    interval = evidence.analysis("main")["bias"]["ci95"]
    if interval is None:
        raise NotDerivable("fewer than two eligible pivots")
    return interval


def identical(evidence: Evidence) -> Decided:
    """Every channel that the records hold: estimates, probe sequences, first tokens of probes."""
    same = evidence.analysis("batchinv")["identity"]
    first = [
        sum(r[f"greedy_first_{p}"] == r["greedy_first_exact1"] for r in evidence.pivots("batchinv"))
        for p in COMPARED
    ]
    n = same["refeed"]["estimates"]["n"]
    parts = {
        name: min(same[p][name]["identical"] for p in COMPARED)
        for name in ("estimates", "probe_sequences", "probe_first_logprobs")
    } | {"probe_first_tokens": min(first)}
    shown = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in parts.items())
    return Decided(set(parts.values()) == {n}, f"{shown} of {n}")


def jaccard(name: str, compared: str) -> Recompute:
    return at(name, f"{THRESHOLD}/{compared}_vs_exact1")


def within_quantum(evidence: Evidence, name: str) -> Decided:
    overlap = _dig(evidence.analysis(name), THRESHOLD)
    near, every = (
        sum(overlap[f"{compared}_{key}"] for compared in ("refeed", "replica"))
        for key in ("within_quantum", "disagreements")
    )
    return Decided(near == every, f"{near} of {every}")


def refeed_share_of_gap(name: str) -> Recompute:
    """(J_replica - J_refeed) / (1 - J_refeed): what re-feed adds to all selection disagreement."""

    def recompute(evidence: Evidence) -> list[float | None]:
        refeed, replica = (one(jaccard(name, c), evidence) for c in ("refeed", "replica"))
        return [(replica - refeed) / (1 - refeed) if refeed < 1 else None]

    return recompute


def refeed_share_of_ceiling(name: str) -> Recompute:
    """(J_replica - J_refeed) / J_replica: what re-feed takes of the overlap a replica leaves."""

    def recompute(evidence: Evidence) -> list[float | None]:
        refeed, replica = (one(jaccard(name, c), evidence) for c in ("refeed", "replica"))
        return [(replica - refeed) / replica if replica else None]

    return recompute


def two_fifths_to_two_thirds(share: Callable[[str], Recompute]) -> Recompute:
    def recompute(evidence: Evidence) -> Decided:
        low, high = over(STOCK, share)(evidence)
        return Decided(round(5 * low) == 2 and round(3 * high) == 2, f"{low:.2f} to {high:.2f}")

    return recompute


def rises(names: Sequence[str], value: Callable[[str], Recompute], sign: int = 1) -> Recompute:
    """Whether a value rises (falls, with sign -1) from each configuration to the next."""

    def recompute(evidence: Evidence) -> Decided:
        evidence.of(names)
        values = [one(value(name), evidence) for name in names]
        shown = ", ".join(f"{LABELS[n]} {v:.3f}" for n, v in zip(names, values, strict=True))
        return Decided(all(sign * (b - a) > 0 for a, b in pairwise(values)), shown)

    return recompute


def selection_gap(name: str) -> Recompute:
    return lambda evidence: [
        one(jaccard(name, "replica"), evidence) - one(jaccard(name, "refeed"), evidence)
    ]


def k8_is_strongest(evidence: Evidence) -> Decided:
    evidence.of(K_STEPS)
    k4, k8, k16 = (one(excess(name), evidence) for name in K_STEPS)
    return Decided(k8 > max(k4, k16), f"K=4, 8, 16: {k4:+.1f}, {k8:+.1f}, {k16:+.1f}")


def conditioned_is_smaller(evidence: Evidence, name: str) -> Decided:
    given, every = (one(excess(name, p), evidence) for p in ("exact1_conditioned", "common_set"))
    return Decided(given < every, f"{given:+.1f} < {every:+.1f}")


def conditioned_is_decisive(evidence: Evidence, name: str) -> Decided:
    records = evidence.records(name)
    test = clustered_given_exact1(records["pivots"], records["config"]["k"])
    shown = f"t = {number(test['t'], '.2f')} (p = {number(test['p'], '.2g')})"
    return Decided(test["p"] is not None and test["t"] > 0 and test["p"] < LEVEL, shown)


def exceeds_floor(evidence: Evidence, name: str) -> Decided:
    test = evidence.analysis(name)["clustered"]
    shown = f"{one(excess(name), evidence):+.1f} pp, p = {number(test['p'], '.2g')}"
    return Decided(test["p"] is not None and test["t"] > 0 and test["p"] < LEVEL, shown)


def flat_in_margin(what: str) -> Recompute:
    """Welch's test of re-feed flips, or of re-feed minus floor flips, below and above the split."""

    def recompute(evidence: Evidence) -> Decided:
        common = common_set(evidence.frame("main"))
        values = flipped(common, "refeed").astype(int)
        if what == "excess":
            values = values - flipped(common, "exact2").astype(int)
        low = common["margin"] < MARGIN_SPLIT
        if min(low.sum(), (~low).sum()) < 2:
            raise NotDerivable(f"fewer than two eligible pivots below or from {MARGIN_SPLIT} up")
        p = stats.ttest_ind(values[low], values[~low], equal_var=False).pvalue
        below, above = 100 * values[low].mean(), 100 * values[~low].mean()
        shown = f"{below:.1f}% below, {above:.1f}% from 0.3 up, p = {number(p, '.2f')}"
        return Decided(not p < LEVEL, shown)  # p is NaN where nothing varies

    return recompute


def verified(names: Sequence[str]) -> Recompute:
    """Whether every pivot hit the cache on both exact passes."""

    def recompute(evidence: Evidence) -> Decided:
        caches = [analysis["cache_instrumentation"] for _, analysis in evidence.of(names)]
        n = sum(c["n_instrumented"] for c in caches)
        misses = [sum(c["flagged"][f"{p}_cache_miss"] for c in caches) for p in EXACT]
        return Decided(not any(misses), f"{misses[0]} and {misses[1]} misses at {n} pivots")

    return recompute


def instrumented(names: Sequence[str]) -> Recompute:
    """Pivots with recorded cache hits."""
    return lambda evidence: [
        sum(a["cache_instrumentation"]["n_instrumented"] for _, a in evidence.of(names))
    ]


def configurations(evidence: Evidence) -> list[float]:
    """How many of the stock-engine configurations differ in model, K or temperature."""
    settings = [records["config"]["sections"] for records, _ in evidence.of(STOCK)]
    used = {(s["model"], *(s["continuations"][n] for n in ("k", "temperature"))) for s in settings}
    return [len(used)]


def models(evidence: Evidence) -> list[float]:
    return [len({records["config"]["sections"]["model"] for records, _ in evidence.of(STOCK)})]


def model_is(expected: str, *names: str) -> Recompute:
    def recompute(evidence: Evidence) -> Decided:
        found = {records["config"]["sections"]["model"] for records, _ in evidence.of(names)}
        return Decided({f.rpartition("/")[2] for f in found} == {expected}, ", ".join(found))

    return recompute


def of_all_pivots(value: Callable[[list[dict]], float], spec: str, limit: float) -> Recompute:
    """Whether a value, largest over all configurations, is at most ``limit``."""

    def recompute(evidence: Evidence) -> Decided:
        largest = max(value(records["pivots"]) for records, _ in evidence.of(ALL))
        return Decided(largest <= limit, f"largest {largest:{spec}}")

    return recompute


def largest_margin(pivots: list[dict]) -> float:
    return max(r["margin"] for r in pivots)


def largest_offset(pivots: list[dict]) -> int:
    return max(r["abs_pos"] % BLOCK for r in pivots)


def trailing_tokens(evidence: Evidence) -> list[float]:
    """The fewest and the most tokens of a pivot past its block boundary."""
    past = [r["abs_pos"] % BLOCK for records, _ in evidence.of(ALL) for r in records["pivots"]]
    return [min(past), max(past)]


def most_per_rollout(pivots: list[dict]) -> int:
    return max(Counter((r["problem_id"], r["rollout"]) for r in pivots).values())


def figure3_files(evidence: Evidence) -> list[float]:
    return [len({r["cohort"] for records, _ in evidence.of(FIGURE3) for r in records["pivots"]})]


def first_campaign(evidence: Evidence) -> list[float]:
    return [sum(not a["cache_instrumentation"]["n_instrumented"] for _, a in evidence.of(ALL))]


def uninstrumented(evidence: Evidence) -> Decided:
    (n,) = instrumented(("greedy", "grpo"))(evidence)
    return Decided(n == 0, f"{n} pivots with cache fields")


def delta_is_maximum(evidence: Evidence, name: str) -> Decided:
    pivots = evidence.pivots(name)

    def largest(record: dict, p: str) -> float:
        one, other = record["greedy_first_exact1"], record[f"greedy_first_{p}"]
        return max(abs(one[arm][1] - other[arm][1]) for arm in ARMS)

    stored, computed = (
        np.array([[f(r, p) for p in COMPARED] for r in pivots])
        for f in (lambda r, p: r[f"greedy_first_logprob_delta_{p}"], largest)
    )
    equal = int(np.isclose(stored, computed, rtol=1e-9, atol=0).all(axis=1).sum())
    return Decided(equal == len(pivots), f"{equal} of {len(pivots)}")


def problems(evidence: Evidence, file: str) -> list[dict]:
    """Problems of one file of the pooled configuration."""
    return [p for p in evidence.records("main")["per_problem"] if p["cohort"] == file]


def primary_window(evidence: Evidence) -> list[float]:
    ids = sorted(p["problem_id"] for p in problems(evidence, "campaign2_primary"))
    return [ids[0], ids[-1]] if ids == list(range(ids[0], ids[-1] + 1)) else [None, None]


def screened_window(evidence: Evidence) -> list[float]:
    ids = [p["problem_id"] for p in problems(evidence, "campaign2_screened")]
    start = evidence.records("main")["config"]["published"]["campaign2_screened"]["scan_start"]
    return [len(ids), min(start, *ids)]


def screened_is_mixed(evidence: Evidence) -> Decided:
    rates = [p["rollout_accuracy"] for p in problems(evidence, "campaign2_screened")]
    return Decided(all(0 < rate < 1 for rate in rates), f"accuracy {min(rates)} to {max(rates)}")


def cohorts_are_disjoint(evidence: Evidence) -> Decided:
    one, other = (
        {p["problem_id"] for p in problems(evidence, f"campaign2_{name}")}
        for name in ("primary", "screened")
    )
    return Decided(not one & other, f"{len(one & other)} problems in both")


def first_problems(evidence: Evidence) -> Decided:
    ids, primary = (
        sorted(p["problem_id"] for p in part)
        for part in (
            evidence.records("batchinv")["per_problem"],
            problems(evidence, "campaign2_primary"),
        )
    )
    return Decided(ids == primary[:10], f"problems {', '.join(map(str, ids))}")


def number_of_problems(name: str) -> Recompute:
    return lambda evidence: [len(evidence.records(name)["per_problem"])]


def at_zero(compared: str, holds: Callable[[float], bool]) -> Recompute:
    """The share of first-logprob deltas of exactly zero over the runs of Figure 3."""

    def recompute(evidence: Evidence) -> Decided:
        deltas = np.array(
            [
                record[f"greedy_first_logprob_delta_{compared}"]
                for records, _ in evidence.of(FIGURE3)
                for record in records["pivots"]
            ]
        )
        share = 100 * float((deltas == 0).mean())
        return Decided(holds(share), f"{share:.1f}% of {len(deltas)}")

    return recompute


def grows_on_phi(evidence: Evidence) -> Decided:
    evidence.of(("main", "phi"))
    main, phi = (one(excess(name), evidence) for name in ("main", "phi"))
    return Decided(phi > main, f"{phi:+.1f} and {main:+.1f} pp")


def figure1_mass(evidence: Evidence) -> Decided:
    sides = evidence.analysis("main")["common_set"]
    parts = {name: (s["zero_crossings"], s["flips"]) for name, s in sides.items()}
    shown = "; ".join(f"{name} {zero} of {flips}" for name, (zero, flips) in parts.items())
    return Decided(all(2 * zero > flips for zero, flips in parts.values()), shown)


RATE, POLARITY = "common_set/{}/flip_rate", "common_set/{}/polarity_rate"
TABLE1_COLUMNS: dict[str, tuple[str, Callable[[str], Recompute]]] = {
    "n": ("eligible pivots", lambda c: at(c, "common_set/refeed/n")),
    "refeed": ("re-feed disagreement, %", lambda c: percent(c, RATE.format("refeed"))),
    "refeed_pol": (
        "re-feed polarity reversals, %",
        lambda c: percent(c, POLARITY.format("refeed")),
    ),
    "floor": ("floor disagreement, %", lambda c: percent(c, RATE.format("floor"))),
    "floor_pol": ("floor polarity reversals, %", lambda c: percent(c, POLARITY.format("floor"))),
    "excess": ("excess, percentage points", excess),
    "t": ("problem-clustered t", lambda c: at(c, "clustered/t")),
    "z": ("McNemar z", lambda c: at(c, "mcnemar/z")),
}
TABLE1 = {
    "main": ("636", "33.8", "3.9", "15.1", "1.1", "+18.7", "5.51", "8.61"),
    "k8": ("490", "35.7", "4.9", "10.4", "1.0", "+25.3", "6.36", "9.68"),
    "k16": ("239", "36.8", "5.9", "23.0", "5.9", "+13.8", "2.87", "3.71"),
    "greedy": ("189", "40.2", "0.5", "13.8", "0.0", "+26.5", "3.64", "5.66"),
    "grpo": ("373", "35.4", "3.8", "9.1", "1.1", "+26.3", "5.50", "8.66"),
    "phi": ("370", "48.6", "6.2", "20.8", "3.0", "+27.8", "3.47", "7.79"),
    "batchinv": ("106", "0.0", None, "0.0", None, "0", UNDEFINED, UNDEFINED),
}
# Temperature and K that the first column of Table 1 names.
TABLE1_SETTINGS = {
    "main": ("0.7", "4"),
    "k8": (None, "8"),
    "k16": (None, "16"),
    "greedy": ("0", "1"),
    "grpo": ("0.7", "4"),
    "phi": ("0.7", "4"),
}
CONDITIONED = {
    "main": "+11.7", "k8": "+19.0", "k16": "+7.4", "greedy": "+11.9", "grpo": "+17.1",
    "phi": "+21.1",
}  # fmt: skip
JACCARDS = {
    "main": ("0.68", "0.84"),
    "k8": ("0.68", "0.87"),
    "k16": ("0.90", "0.96"),
    "greedy": ("0.59", "0.83"),
    "grpo": ("0.66", "0.88"),
    "phi": ("0.34", "0.63"),
}
SPLITS = {"main": ("29", "5"), "k8": ("19", "0"), "grpo": ("16", "2")}
BIT_EXACT, DIVERGENCE = "greedy_probe/{}/bit_exact_rate", "greedy_probe/{}/divergence_rate"
NO_ENGINE = "the records name neither the engine nor the hardware"
NO_PROBE = "the records hold a probe's first token and whether it diverged, not its length"
NO_PRICE = "the records hold run times, and neither a price nor all runs of the first campaign"


def _table1() -> Iterable[Claim]:
    for name, printed in TABLE1.items():
        temperature, k = TABLE1_SETTINGS.get(name, (None, None))
        label = LABELS[name]
        for key, claimed, path in (
            ("temperature", temperature, "continuations/temperature"),
            ("k", k, "continuations/k"),
        ):
            if claimed:
                what = f"{label}: {key} of the continuations"
                yield Claim(f"table1.{name}.{key}", "Table 1", what, claimed, setting([name], path))
        for (key, (what, value)), claimed in zip(TABLE1_COLUMNS.items(), printed, strict=True):
            if claimed:
                quantity = f"{label}: {what}"
                yield Claim(f"table1.{name}.{key}", "Table 1", quantity, claimed, value(name))


def _per_configuration() -> dict[str, list[Claim]]:
    """Claims of sections 5.1 and 5.2 that give one value for each configuration."""
    return {
        "splits": [
            Claim(
                f"5.1.split.{name}.{side}",
                "5.1",
                f"{LABELS[name]}: problems on which {side} changes more signs",
                claimed,
                at(name, f"clustered/problems_{side}_worse"),
            )
            for name, pair in SPLITS.items()
            for side, claimed in zip(("refeed", "floor"), pair, strict=True)
        ],
        "conditioned": [
            Claim(
                f"5.1.conditioned.{name}",
                "5.1",
                f"{LABELS[name]}: excess where exact 1 is nonzero, percentage points",
                claimed,
                excess(name, "exact1_conditioned"),
            )
            for name, claimed in CONDITIONED.items()
        ],
        "jaccards": [
            Claim(
                f"5.2.jaccard.{name}.{compared}",
                "5.2",
                f"{LABELS[name]}: Jaccard of selections at 0.5, {compared} and exact 1",
                claimed,
                jaccard(name, compared),
            )
            for name, pair in JACCARDS.items()
            for compared, claimed in zip(("refeed", "replica"), pair, strict=True)
        ],
        "quantum": [
            Claim(
                f"5.2.quantum.{name}",
                "5.2",
                f"{LABELS[name]}: selection disagreements, under re-feed and replica, with an"
                " estimate at most 1/K from the threshold"
                + (" (at K=1 any estimate is)" if name == "greedy" else ""),
                "every one",
                lambda evidence, name=name: within_quantum(evidence, name),
            )
            for name in STOCK
        ],
    }


_EACH = _per_configuration()

CLAIMS: tuple[Claim, ...] = (
    # Abstract
    Claim("abstract.configurations", "abstract",
          "stock-engine configurations that differ in model, K or temperature", "6",
          configurations),
    Claim("abstract.models", "abstract", "models", "3", models),
    Claim("abstract.excess", "abstract", "excess over the floor, range, percentage points",
          "14–28", over(STOCK, excess)),
    Claim("abstract.conditioned", "abstract",
          "excess where exact 1 is nonzero, range, percentage points", "7–21",
          over(STOCK, lambda c: excess(c, "exact1_conditioned"))),
    Claim("abstract.t", "abstract", "problem-clustered t, range", "2.9–6.4",
          over(STOCK, lambda c: at(c, "clustered/t"))),
    Claim("abstract.zero_crossings", "abstract",
          "zero crossings among re-feed sign changes: more than half in every configuration",
          "most changes are zero-boundary crossings", everywhere(STOCK, mostly_zero_crossings)),
    Claim("abstract.mean_zero", "abstract", "95% interval of the pooled bias contains zero",
          "consistent with mean-zero", mean_zero),
    Claim("abstract.jaccard_refeed", "abstract", "Jaccard under re-feed, range", "0.34–0.90",
          over(STOCK, lambda c: jaccard(c, "refeed"))),
    Claim("abstract.jaccard_replica", "abstract", "Jaccard under the replica, range", "0.63–0.96",
          over(STOCK, lambda c: jaccard(c, "replica"))),
    Claim("abstract.identical", "abstract", "batch-invariant: channels equal at every pivot",
          "all three passes identical on every measured channel", identical),
    Claim("abstract.batchinv_refeed", "abstract", "batch-invariant: sign changes under re-feed",
          "0", at("batchinv", "common_set/refeed/flips")),
    Claim("abstract.batchinv_floor", "abstract", "batch-invariant: sign changes under the replica",
          "0", at("batchinv", "common_set/floor/flips")),
    Claim("abstract.floor", "abstract", "floor disagreement, range, %", "9–23",
          over(STOCK, lambda c: percent(c, RATE.format("floor")))),
    Claim("abstract.hits", "abstract",
          "stock engine, second campaign: no cache miss in either exact pass", "100%",
          verified(CAMPAIGN2)),
    Claim("abstract.pivots", "abstract", "instrumented pivots of the stock engine", "3,434",
          instrumented(CAMPAIGN2)),
    Claim("abstract.pivots_all", "abstract", "instrumented pivots with the batch-invariant run",
          "3,829", instrumented((*CAMPAIGN2, "batchinv"))),
    Claim("abstract.cost", "abstract", "total compute, US dollars", "under $10",
          not_derivable(NO_PRICE)),
    # Section 3
    Claim("3.1.rollouts", "3.1", "trunk rollouts a problem", "8", setting(ALL, "trunks/rollouts")),
    Claim("3.1.temperature", "3.1", "temperature of the trunks", "0.7",
          setting(ALL, "trunks/temperature")),
    Claim("3.1.margin", "3.1", "recorded margin of every pivot is below 1.0", "below 1.0",
          of_all_pivots(largest_margin, ".9f", np.nextafter(1, 0))),
    Claim("3.1.offset", "3.1", "every pivot is at most 2 tokens past a 16-token boundary",
          "within 2 tokens", of_all_pivots(largest_offset, "d", 2)),
    Claim("3.1.per_rollout", "3.1", "pivots a rollout", "at most 5",
          of_all_pivots(most_per_rollout, "d", 5)),
    Claim("3.2.hits", "3.2", "second campaign: no cache miss in either exact pass", "100%",
          verified((*CAMPAIGN2, "batchinv"))),
    Claim("3.2.pivots", "3.2", "instrumented pivots", "3,829",
          instrumented((*CAMPAIGN2, "batchinv"))),
    Claim("3.2.only_refeed", "3.2", "pooled main: eligible pivots nonzero only under re-feed", "77",
          at("main", "eligibility_sources/only_refeed_nonzero")),
    Claim("3.2.eligible", "3.2", "pooled main: eligible pivots", "636",
          at("main", "common_set/refeed/n")),
    Claim("3.2.only_replica", "3.2", "pooled main: eligible pivots nonzero only under the replica",
          "18", at("main", "eligibility_sources/only_exact2_nonzero")),
    Claim("3.2.probe", "3.2", "tokens of a greedy probe", "32-token", not_derivable(NO_PROBE)),
    Claim("3.2.delta", "3.2", "stored probe delta equals the larger of the two arms' differences",
          "per-pivot maxima over the two arms",
          everywhere((*CAMPAIGN2, "batchinv"), delta_is_maximum)),
    Claim("3.3.replica", "3.3", "pivots at which the replica gives both arms' first"
          " logprobs bit by bit, range, %",
          "61–94", over(STOCK, lambda c: percent(c, BIT_EXACT.format("exact2")))),
    Claim("3.3.refeed", "3.3", "pivots at which re-feed gives both arms' first"
          " logprobs bit by bit, range, %",
          "2.6–5.7", over(STOCK, lambda c: percent(c, BIT_EXACT.format("refeed")))),
    Claim("3.3.trailing", "3.3", "tokens of a pivot past its 16-token block boundary", "0–2",
          trailing_tokens),
    Claim("3.4.first_campaign", "3.4", "configurations of Table 1 without cache fields", "2",
          first_campaign),
    Claim("3.4.overlap", "3.4", "problems that the first campaign's pooled cohorts share", "four",
          not_derivable("the first campaign's pooled cohorts are not among the record files")),
    # Section 4
    Claim("4.model.qwen", "4", "model recorded for main, K=8, K=16, greedy and batch-invariant",
          "Qwen2.5-7B-Instruct",
          model_is("Qwen2.5-7B-Instruct", "main", "k8", "k16", "greedy", "batchinv")),
    Claim("4.model.grpo", "4", "model recorded for GRPO", "Qwen-2.5-7B-SimpleRL-Zoo",
          model_is("Qwen-2.5-7B-SimpleRL-Zoo", "grpo")),
    Claim("4.model.phi", "4", "model recorded for Phi-4-mini", "Phi-4-mini-instruct",
          model_is("Phi-4-mini-instruct", "phi")),
    Claim("4.primary", "4", "pooled main: problems of the fixed window, first to last", "0–19",
          primary_window),
    Claim("4.screened", "4", "pooled main: number of screened problems, all from index 20 upward",
          "20 from index 20", screened_window),
    Claim("4.mixed", "4", "screened problems are neither all right nor all wrong",
          "mixed-difficulty", screened_is_mixed),
    Claim("4.disjoint", "4", "problems that both cohorts hold: none", "no overlap",
          cohorts_are_disjoint),
    Claim("4.engine", "4", "version of the engine", "vLLM 0.22.1", not_derivable(NO_ENGINE)),
    Claim("4.hardware", "4", "hardware of a run", "one A100 SXM 80GB", not_derivable(NO_ENGINE)),
    Claim("4.cost", "4", "total compute, US dollars", "under $10", not_derivable(NO_PRICE)),
    # Table 1
    *_table1(),
    Claim("table1.k16.problems", "Table 1", "K=16: problems", "10", number_of_problems("k16")),
    Claim("table1.uninstrumented", "Table 1", "greedy and GRPO have no cache fields",
          "prior to cache instrumentation", uninstrumented),
    Claim("table1.hits", "Table 1", "second campaign: no cache miss in either exact pass", "100%",
          verified((*CAMPAIGN2, "batchinv"))),
    Claim("table1.greedy.trunks", "Table 1", "greedy: temperature of the trunks", "0.7",
          setting(["greedy"], "trunks/temperature")),
    Claim("table1.identical", "Table 1", "batch-invariant: channels equal at every pivot",
          "all three passes bitwise identical", identical),
    # Section 5.1
    Claim("5.1.excess", "5.1", "excess over the floor, range, percentage points", "14–28",
          over(STOCK, excess)),
    Claim("5.1.t", "5.1", "problem-clustered t, range", "2.9–6.4",
          over(STOCK, lambda c: at(c, "clustered/t"))),
    *_EACH["splits"],
    *_EACH["conditioned"],
    Claim("5.1.conditioned_smaller", "5.1",
          "excess where exact 1 is nonzero is below that of Table 1 in every configuration",
          "smaller", everywhere(STOCK, conditioned_is_smaller)),
    Claim("5.1.conditioned_decisive", "5.1",
          "problem-clustered t test where exact 1 is nonzero: p < 0.05 in every configuration",
          "decisive everywhere", everywhere(STOCK, conditioned_is_decisive)),
    Claim("5.1.k8_strongest", "5.1", "excess of K=8 is the largest of the three K, so no monotone"
          " trend", "K=8 is the strongest of the three K settings", k8_is_strongest),
    Claim("5.1.polarity_refeed", "5.1", "polarity reversals under re-feed, range, %", "0.5–6.2",
          over(STOCK, lambda c: percent(c, POLARITY.format("refeed")))),
    Claim("5.1.polarity_floor", "5.1", "polarity reversals at the floor, range, %", "0–5.9",
          over(STOCK, lambda c: percent(c, POLARITY.format("floor")))),
    Claim("5.1.zero_crossings", "5.1",
          "zero crossings among re-feed sign changes: more than half in every configuration",
          "most disagreements are the quantized estimator crossing zero",
          everywhere(STOCK, mostly_zero_crossings)),
    Claim("5.1.mean_zero", "5.1", "95% interval of the pooled bias contains zero",
          "consistent with mean-zero", mean_zero),
    Claim("5.1.bias", "5.1", "pooled main: bias", "-0.011", at("main", "bias/mean_diff")),
    Claim("5.1.bias_t", "5.1", "pooled main: t of the bias", "-1.23", at("main", "bias/t")),
    Claim("5.1.bias_low", "5.1", "pooled main: lower end of the bias's 95% interval", "-0.029",
          lambda e: bias_interval(e)[:1]),
    Claim("5.1.bias_high", "5.1", "pooled main: upper end of the bias's 95% interval", "+0.006",
          lambda e: bias_interval(e)[1:]),
    Claim("5.1.flat", "5.1", "pooled main: re-feed disagreement below and above a margin of 0.3,"
          " Welch p ≥ 0.05 over pivots", "flat in pivot margin", flat_in_margin("refeed")),
    Claim("5.1.flat_excess", "5.1", "pooled main: excess below and above a margin of 0.3, Welch"
          " p ≥ 0.05 over pivots", "flat in pivot margin", flat_in_margin("excess")),
    Claim("5.1.low_refeed", "5.1", "pooled main: re-feed disagreement below margin 0.3, %", "34.2",
          percent("main", "margin_lt_0.3/refeed/flip_rate")),
    Claim("5.1.high_refeed", "5.1", "pooled main: re-feed disagreement from margin 0.3 up, %",
          "33.6", percent("main", "margin_ge_0.3/refeed/flip_rate")),
    Claim("5.1.low_floor", "5.1", "pooled main: floor disagreement below margin 0.3, %", "12.0",
          percent("main", "margin_lt_0.3/floor/flip_rate")),
    Claim("5.1.high_floor", "5.1", "pooled main: floor disagreement from margin 0.3 up, %", "16.9",
          percent("main", "margin_ge_0.3/floor/flip_rate")),
    Claim("figure1.mass", "Figure 1", "pooled main: zero crossings among sign changes, more than"
          " half in both panels", "most disagreement mass sits in the zero row/column",
          figure1_mass),
    Claim("figure2.greedy", "Figure 2", "greedy: excess positive, problem-clustered p < 0.05",
          "survives the removal of sampling noise", lambda e: exceeds_floor(e, "greedy")),
    Claim("figure2.phi", "Figure 2", "excess of Phi-4-mini is above that of pooled main",
          "grows on a second model family", grows_on_phi),
    Claim("figure2.grpo", "Figure 2", "GRPO: excess positive, problem-clustered p < 0.05",
          "holds on a GRPO-trained checkpoint", lambda e: exceeds_floor(e, "grpo")),
    Claim("figure2.batchinv", "Figure 2", "batch-invariant: sign changes under re-feed and replica",
          "0 and 0", at("batchinv", "common_set/refeed/flips", "common_set/floor/flips")),
    # Section 5.2
    *_EACH["jaccards"],
    Claim("5.2.jaccard.batchinv.refeed", "5.2", "batch-invariant: Jaccard under re-feed",
          "exactly 1.0", exactly_one("batchinv", f"{THRESHOLD}/refeed_vs_exact1")),
    Claim("5.2.jaccard.batchinv.replica", "5.2", "batch-invariant: Jaccard under the replica",
          "exactly 1.0", exactly_one("batchinv", f"{THRESHOLD}/replica_vs_exact1")),
    Claim("5.2.share", "5.2", "(replica − re-feed) / (1 − re-feed) of the Jaccards, range, to the"
          " nearest fifth and third", "two-fifths to two-thirds",
          two_fifths_to_two_thirds(refeed_share_of_gap)),
    Claim("5.2.headroom", "5.2", "headroom as all selection disagreement: (replica − re-feed) /"
          " (1 − re-feed) of the Jaccards, range, to the nearest fifth and third",
          "a further two-fifths to two-thirds", two_fifths_to_two_thirds(refeed_share_of_gap)),
    Claim("5.2.headroom_left", "5.2", "headroom as the overlap that the replica leaves: (replica −"
          " re-feed) / replica of the Jaccards, range, to the nearest fifth and third",
          "a further two-fifths to two-thirds", two_fifths_to_two_thirds(refeed_share_of_ceiling)),
    *_EACH["quantum"],
    Claim("5.2.k4", "5.2", "Jaccard under re-feed at K=4", "0.68", jaccard("main", "refeed")),
    Claim("5.2.k16", "5.2", "Jaccard under re-feed at K=16", "0.90", jaccard("k16", "refeed")),
    Claim("5.2.finer", "5.2", "Jaccard under re-feed is higher at K=16 than at K=4",
          "the re-feed gap narrows as the estimator gets finer",
          rises(("main", "k16"), lambda c: jaccard(c, "refeed"))),
    Claim("5.2.finer_steps", "5.2", "Jaccard under re-feed rises from K=4 to 8 and from 8 to 16",
          "the re-feed gap narrows as the estimator gets finer",
          rises(K_STEPS, lambda c: jaccard(c, "refeed"))),
    Claim("5.2.finer_gap", "5.2", "Jaccard of the replica minus that of re-feed falls from K=4 to 8"
          " and from 8 to 16", "the re-feed gap narrows as the estimator gets finer",
          rises(K_STEPS, selection_gap, sign=-1)),
    # Section 5.3
    Claim("5.3.replica", "5.3", "pivots at which the replica gives both arms' first"
          " logprobs bit by bit, range, %",
          "61–94", over(STOCK, lambda c: percent(c, BIT_EXACT.format("exact2")))),
    Claim("5.3.refeed", "5.3", "pivots at which re-feed gives both arms' first"
          " logprobs bit by bit, range, %",
          "2.6–5.7", over(STOCK, lambda c: percent(c, BIT_EXACT.format("refeed")))),
    Claim("5.3.p90_replica", "5.3", "pooled main: 90th percentile of the replica's deltas (the"
          " smallest that nine tenths do not exceed), nats",
          "3.7×10^-3", at("main", "greedy_probe/exact2/p90_delta")),
    Claim("5.3.p90_refeed", "5.3", "pooled main: 90th percentile of re-feed's deltas (the smallest"
          " that nine tenths do not exceed), nats",
          "4.8×10^-2", at("main", "greedy_probe/refeed/p90_delta")),
    Claim("5.3.diverge_refeed", "5.3", "pooled main: probes that diverge under re-feed, %", "22.8",
          percent("main", DIVERGENCE.format("refeed"))),
    Claim("5.3.diverge_replica", "5.3", "pooled main: probes that diverge under the replica, %",
          "7.9", percent("main", DIVERGENCE.format("exact2"))),
    Claim("5.3.probe", "5.3", "tokens within which probes diverge", "32 greedy tokens",
          not_derivable(NO_PROBE)),
    Claim("figure3.runs", "Figure 3", "record files with pivots of pooled main, K=8 and Phi-4-mini",
          "4", figure3_files),
    Claim("figure3.replica", "Figure 3", "deltas of exactly zero under the replica: more than half",
          "mass concentrates at exactly zero", at_zero("exact2", lambda share: share > 50)),
    Claim("figure3.refeed", "Figure 3", "deltas of exactly zero under re-feed: less than a tenth",
          "essentially no mass there", at_zero("refeed", lambda share: share < 10)),
    Claim("figure3.batchinv.refeed", "Figure 3", "batch-invariant: share of deltas of exactly zero"
          " under re-feed", "100% at zero",
          exactly_one("batchinv", BIT_EXACT.format("refeed"), 100, "%")),
    Claim("figure3.batchinv.replica", "Figure 3", "batch-invariant: share of deltas of exactly zero"
          " under the replica", "100% at zero",
          exactly_one("batchinv", BIT_EXACT.format("exact2"), 100, "%")),
    # Section 5.4
    Claim("5.4.temperature", "5.4", "batch-invariant: temperature of the continuations", "0.7",
          setting(["batchinv"], "continuations/temperature")),
    Claim("5.4.k", "5.4", "batch-invariant: K", "4", setting(["batchinv"], "continuations/k")),
    Claim("5.4.problems", "5.4", "batch-invariant: its problems are the first of the primary"
          " cohort", "first 10 problems", first_problems),
    Claim("5.4.pivots", "5.4", "batch-invariant: pivots", "395", at("batchinv", "n_records")),
    Claim("5.4.eligible", "5.4", "batch-invariant: eligible pivots", "106",
          at("batchinv", "common_set/refeed/n")),
    Claim("5.4.refeed", "5.4", "batch-invariant: sign changes under re-feed", "0",
          at("batchinv", "common_set/refeed/flips")),
    Claim("5.4.floor", "5.4", "batch-invariant: sign changes under the replica", "0",
          at("batchinv", "common_set/floor/flips")),
    Claim("5.4.bits_refeed", "5.4", "batch-invariant: share of bit-exact probes under re-feed",
          "100%", exactly_one("batchinv", BIT_EXACT.format("refeed"), 100, "%")),
    Claim("5.4.bits_replica", "5.4", "batch-invariant: share of bit-exact probes under the replica",
          "100%", exactly_one("batchinv", BIT_EXACT.format("exact2"), 100, "%")),
    Claim("5.4.estimates", "5.4", "batch-invariant: pivots with the estimate of exact 1, re-feed",
          "395", at("batchinv", "identity/refeed/estimates/identical")),
    Claim("5.4.estimates_replica", "5.4", "batch-invariant: pivots with the estimate of exact 1,"
          " replica", "395", at("batchinv", "identity/exact2/estimates/identical")),
    Claim("5.4.jaccard", "5.4", "batch-invariant: Jaccard under re-feed", "exactly 1.0",
          exactly_one("batchinv", f"{THRESHOLD}/refeed_vs_exact1")),
    Claim("5.4.identical", "5.4", "batch-invariant: channels equal at every pivot",
          "identity on every stored channel", identical),
    # Section 5.5
    Claim("5.5.floor", "5.5", "floor disagreement, range, %", "9–23",
          over(STOCK, lambda c: percent(c, RATE.format("floor")))),
    Claim("5.5.diverge", "5.5", "probes that diverge under the replica, range, %", "2–14",
          over(STOCK, lambda c: percent(c, DIVERGENCE.format("exact2")))),
)  # fmt: skip
