"""The second table: what the analyses say beyond the paper, as CSV, Markdown and LaTeX."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from replay.inference import holm
from replay.planning import TARGET_JACCARD
from replay.storage import write_text
from replay.tables import UNDEFINED, WRAPPED, number, write_float, write_markdown

COLUMNS = [
    "configuration",
    "statistic",
    "comparison",
    "group",
    "value",
    "low",
    "high",
    "n",
    "note",
]
# Significant digits, because p values can be tiny.
CSV_FORMAT = "%.8g"
TESTS = {"sign": "p_sign", "sign_flip": "p_sign_flip", "mcnemar": "p_mcnemar"}
UNITS = {"sign": "problems", "sign_flip": "problems", "mcnemar": "pivots"}
SIDES = (("refeed", "re-feed"), ("floor", "replica"))
SEEDS = {"same_seeds": "same seeds", "fresh_seeds": "fresh seeds"}
# statistic -> (its name, the format of a value)
NAMES = {
    "excess_pp": ("Excess (pp)", "+z.1f"),
    "sign_changes_pct": ("Sign changes (%)", ".1f"),
    "jaccard": ("Jaccard overlap", ".2f"),
    "floor_share_pct": ("Floor share (%)", ".1f"),
    "p_sign": ("Sign test p", ".2g"),
    "p_sign_holm": ("Sign test p after Holm", ".2g"),
    "p_sign_flip": ("Sign-flip permutation p", ".2g"),
    "p_sign_flip_holm": ("Sign-flip permutation p after Holm", ".2g"),
    "p_mcnemar": ("McNemar exact p", ".2g"),
    "p_mcnemar_holm": ("McNemar exact p after Holm", ".2g"),
    "bit_exact_pct": ("First logprob bit-exact (%)", ".1f"),
    "only_published_ranking_pct": ("Pivots only under the published ranking (%)", ".1f"),
    "detectable_excess_pp": ("Detectable excess (pp)", ".1f"),
    "k_needed": (f"K for a Jaccard of {TARGET_JACCARD}", ".0f"),
}

CAPTION = (
    "Statistics of every configuration. Brackets hold 95% intervals over problems, or why there is"
    " none; a pair of values is of re-feed / replica, and Jaccard overlaps are with exact pass 1."
)
LATEX_COLUMNS = 3  # configurations whose intervals fit beside one another into 5.5 inches


def statistics_table(rows: list[dict]) -> pd.DataFrame:
    """One line a statistic of a configuration, from rows of {name, analysis}.

    Columns are ``COLUMNS``. ``comparison`` names the pass compared with exact pass 1, ``group``
    the pivots or the condition. Percentages and percentage points in ``value`` and its 95%
    interval ``low`` to ``high``; NaN where undefined, and then ``note`` says why if there is a
    reason to tell. ``n`` counts pivots, or problems where problems are what is tested. Holm's
    adjustment is over the configurations whose p is defined.
    """
    lines = [line for row in rows for line in _lines(row["name"], row["analysis"])]
    for test, statistic in TESTS.items():
        adjusted = holm(row["analysis"]["tests"][test]["p"] for row in rows)
        for row, p in zip(rows, adjusted, strict=True):
            n = row["analysis"]["tests"][test]["n"]
            lines.append(_line(row["name"], f"{statistic}_holm", "", UNITS[test], p, n=n))
    table = pd.DataFrame(lines, columns=COLUMNS)
    order = {row["name"]: place for place, row in enumerate(rows)}
    place = list(NAMES)
    table = table.sort_values(
        ["configuration", "statistic"],
        key=lambda column: column.map(order if column.name == "configuration" else place.index),
        kind="stable",
        ignore_index=True,
    )
    return table.astype(dict.fromkeys(["value", "low", "high"], float) | {"n": "Int64"})


def _line(name: str, statistic: str, comparison: str, group: str, value, **more) -> dict:
    empty = {"low": None, "high": None, "n": None, "note": ""}
    keys = {"configuration": name, "statistic": statistic, "comparison": comparison}
    return keys | {"group": group, "value": value} | empty | more


def _lines(name: str, analysis: dict) -> Iterator[dict]:
    common, intervals = analysis["common_set"], analysis["intervals"]
    n = common["refeed"]["n"]
    yield _interval(name, "excess_pp", "", "eligible", intervals["excess"], 100, n)
    for (side, comparison), key in zip(SIDES, ("refeed_rate", "floor_rate"), strict=True):
        yield _interval(
            name, "sign_changes_pct", comparison, "eligible", intervals[key], 100, common[side]["n"]
        )
    for key, comparison in (("refeed_jaccard", "re-feed"), ("replica_jaccard", "replica")):
        side = key.removesuffix("_jaccard")
        either = sum(analysis["per_problem"][f"{side}_either"])
        yield _interval(name, "jaccard", comparison, "threshold 0.5", intervals[key], 1, either)
    yield _interval(
        name, "floor_share_pct", "", "", intervals["floor_share"], 100, common["refeed"]["flips"]
    )
    for test, statistic in TESTS.items():
        result = analysis["tests"][test]
        note = result.get("method") or ""
        yield _line(name, statistic, "", UNITS[test], result["p"], n=result["n"], note=note)
    for group, key in (("all", "bit_exact_rate"), ("unsaturated", "bit_exact_rate_unsaturated")):
        for p, comparison in (("refeed", "re-feed"), ("exact2", "replica")):
            probe = analysis["greedy_probe"][p]
            yield _line(name, "bit_exact_pct", comparison, group, _times(100, probe[key]))
    for group, note, sides in _groups(analysis):
        for side, comparison in SIDES:
            rate = _times(100, sides[side]["flip_rate"])
            count = sides[side]["n"]
            yield _line(name, "sign_changes_pct", comparison, group, rate, n=count, note=note)
    ranking = analysis["only_published_ranking"]
    share = _times(100, ranking["share"])
    yield _line(name, "only_published_ranking_pct", "", "", share, n=ranking["n"])
    power = analysis["detectable_excess"]
    yield _line(
        name, "detectable_excess_pp", "", "", _times(100, power["excess"]), n=power["n_problems"]
    )
    for key, group in SEEDS.items():
        overlap = analysis["replica_overlap"]
        value, note = None, ""
        if overlap["by_k"]:
            value = overlap["k_needed"][key]
            note = "" if value else f"not reached up to K={overlap['by_k'][-1]['k']}"
        yield _line(name, "k_needed", "", group, value, note=note)


def _groups(analysis: dict) -> Iterator[tuple[str, str, dict]]:
    for sides in analysis["by_offset"] or []:
        yield f"offset {sides['offset']}", "", sides
    for place, sides in enumerate(analysis["by_margin_decile"], start=1):
        yield f"margin decile {place}", f"margin {sides['low']:g} to {sides['high']:g}", sides
    for grader, sides in (analysis["by_grader"] or {}).items():
        yield f"grader {grader}", "", sides


def _interval(
    name: str, statistic: str, comparison: str, group: str, result: dict, unit: int, n: int
) -> dict:
    low, high = result["ci95"] or (None, None)
    return _line(
        name,
        statistic,
        comparison,
        group,
        _times(unit, result["estimate"]),
        low=_times(unit, low),
        high=_times(unit, high),
        n=n,
        note=result["undefined"] or "",
    )


def _times(unit: int, value: float | None) -> float | None:
    return None if value is None else unit * value


def printed_statistics(table: pd.DataFrame, labels: dict[str, str]) -> pd.DataFrame:
    """The second table as text: a line a statistic, a column a configuration.

    ``labels`` maps the configurations' names to headings. Values with an interval stand alone,
    others as re-feed / replica.
    """
    intervals = {"excess_pp", "jaccard", "floor_share_pct"}
    lines: dict[str, dict[str, list[str]]] = {}
    ordered = table.sort_values("statistic", key=lambda c: c.map(list(NAMES).index), kind="stable")
    for row in ordered.itertuples():
        alone = row.statistic in intervals or row.group == "eligible"
        title = NAMES[row.statistic][0]
        parts = [row.comparison] if alone else []
        parts += [row.group] if row.group not in ("", "eligible", *UNITS.values()) else []
        label = ", ".join([title, *(part for part in parts if part)])
        cell = _cell(row, alone)
        lines.setdefault(label, {}).setdefault(row.configuration, []).append(cell)
    return pd.DataFrame(
        [
            [label, *(_both_sides(cells.get(name, [UNDEFINED])) for name in labels)]
            for label, cells in lines.items()
        ],
        columns=["Statistic", *labels.values()],
        dtype=str,
    )


def _both_sides(cells: list[str]) -> str:
    return UNDEFINED if set(cells) == {UNDEFINED} else " / ".join(cells)


def _cell(row, alone: bool) -> str:
    spec = NAMES[row.statistic][1]
    if pd.isna(row.value):
        return row.note if row.statistic == "k_needed" and row.note else UNDEFINED
    text = number(row.value, spec)
    if not alone:
        return text
    if pd.isna(row.low):
        return f"{text} [{row.note}]"
    return f"{text} [{number(row.low, spec)}, {number(row.high, spec)}]"


def write_statistics(
    rows: list[dict], csv: str | Path, markdown: str | Path, latex: str | Path
) -> None:
    """Write the second table from rows of {name, label, analysis}; the CSV has all its columns."""
    table = statistics_table(rows)
    write_text(csv, table.to_csv(index=False, float_format=CSV_FORMAT))
    text = printed_statistics(table, {row["name"]: row["label"] for row in rows})
    write_markdown(text, 1, markdown)
    layout = ["l", *[WRAPPED] * len(rows)]
    write_float(text, layout, CAPTION, "statistics", latex, size="scriptsize", most=LATEX_COLUMNS)
