"""Table 2: the effect of re-feeding and its parts, one row a configuration."""

from pathlib import Path

import pandas as pd

from replay.controls import PARTS
from replay.storage import write_text
from replay.tables import (
    CSV_DECIMALS,
    UNDEFINED,
    WRAPPED,
    marked,
    number,
    write_float,
    write_markdown,
)

NOT_APPLICABLE = "not applicable"
# column -> (heading, format, part of the analysis, name in it); values are percentages or points
QUANTITIES = {
    "refeed_pct": ("Re-feed", ".1f", "comparisons", "refeed"),
    "state_pct": ("Recomputed state", ".1f", "comparisons", "state"),
    "batch_pct": ("Batch dynamics", ".1f", "comparisons", "batch"),
    "surplus_pp": ("Sum above total (pp)", ".1f", "decomposition", "surplus"),
    "state_share_pct": ("State share", ".0f", "shares", "state"),
    "batch_share_pct": ("Batch share", ".0f", "shares", "batch"),
    "floor_pct": ("Floor", ".1f", "comparisons", "floor"),
    "refeed_floor_pct": ("Re-feed replica", ".1f", "comparisons", "refeed_floor"),
    "staggered_floor_pct": ("Staggered floor", ".1f", "comparisons", "staggered_floor"),
}
CAPTION = (
    "Why re-feeding changes estimates: percent of the n pivots with a nonzero estimate in any pass"
    " whose sign differs, with 95% intervals over problems, for requests in batches (one at a time:"
    " Figure 4). Recomputed state: exact 1 against the same cache hits on prefilled state; batch"
    " dynamics: that against re-feed. The shares are of"
    " the sign changes under re-feed; what the parts sum to above the total is in points. n/a: not"
    " applicable, because a pass was not run."
)


def quantity(analysis: dict, column: str) -> dict | None:
    """The interval of one quantity of Table 2, None where its passes were not run."""
    _, _, part, name = QUANTITIES[column]
    if part == "comparisons":
        comparison = analysis["comparisons"].get(name)
        return comparison and comparison["rate"]
    if part == "shares":
        return (analysis["decomposition"]["shares"] or {}).get(name)
    return analysis["decomposition"][name]


def table2(rows: list[dict]) -> pd.DataFrame:
    """Table 2 as numbers, from rows of {name, model, analysis}.

    Every quantity has its 95% interval in ``_low`` and ``_high``; NaN where undefined or not run.
    ``mean_difference`` columns are signed differences of the estimates, of which the parts add up.
    ``adds_up`` says whether the rates do; ``note`` which passes are missing.
    """
    table = pd.DataFrame([_numbers(row) for row in rows])
    texts = {"configuration", "model", "note"}
    return table.astype(dict.fromkeys(set(table) - texts, float) | {"n": int, "adds_up": "boolean"})


def _numbers(row: dict) -> dict:
    analysis = row["analysis"]
    comparisons, parts = analysis["comparisons"], analysis["decomposition"]
    line = {"configuration": row["name"], "model": row["model"], "n": comparisons["refeed"]["n"]}
    for column in QUANTITIES:
        line |= _with_bounds(column, quantity(analysis, column), 100)
    for name in ("refeed", *PARTS):
        interval = comparisons[name]["mean_difference"] if name in comparisons else None
        line |= _with_bounds(f"{name}_mean_difference", interval, 1)
    return line | {"adds_up": parts["adds_up"], "note": note(parts)}


def note(decomposition: dict) -> str:
    return f"{NOT_APPLICABLE}: no prefill_warm pass" if decomposition["missing"] else ""


def _with_bounds(column: str, interval: dict | None, unit: int) -> dict:
    estimate = interval and interval["estimate"]
    values = (estimate, *((interval and interval["ci95"]) or (None, None)))
    names = (column, f"{column}_low", f"{column}_high")
    return {n: None if v is None else unit * v for n, v in zip(names, values, strict=True)}


def printed2(rows: list[dict]) -> pd.DataFrame:
    """Table 2 as text: estimates with their intervals, or why there is none."""
    lines = [
        {
            "Configuration": marked(row),
            "n": str(row["analysis"]["comparisons"]["refeed"]["n"]),
            **{
                heading: cell(quantity(row["analysis"], column), spec)
                for column, (heading, spec, *_) in QUANTITIES.items()
            },
        }
        for row in rows
    ]
    headings = [heading for heading, *_ in QUANTITIES.values()]
    return pd.DataFrame(lines, columns=["Configuration", "n", *headings], dtype=str)


def cell(interval: dict | None, spec: str, unit: str = "") -> str:
    """An estimate in percent with its interval; why it has none stands in its place."""
    if interval is None:
        return NOT_APPLICABLE
    if interval["estimate"] is None:
        return UNDEFINED
    text = number(100 * interval["estimate"], f"z{spec}") + unit
    if not interval["ci95"]:
        return f"{text} [{interval['undefined']}]"
    low, high = (number(100 * bound, f"z{spec}") for bound in interval["ci95"])
    return f"{text} [{low}, {high}]"


def write_controls(rows: list[dict], csv: str | Path, markdown: str | Path, latex: str | Path):
    """Write Table 2: numbers to ``csv``, the printed form to the others."""
    write_text(csv, table2(rows).round(CSV_DECIMALS).to_csv(index=False))
    text = printed2(rows)
    write_markdown(text, 1, markdown)
    layout = [WRAPPED, "r", *[WRAPPED] * len(QUANTITIES)]
    narrow = text.replace(NOT_APPLICABLE, "n/a")
    write_float(narrow, layout, CAPTION, "controls", latex, size="scriptsize", gap=3)
