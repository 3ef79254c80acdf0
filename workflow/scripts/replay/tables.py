"""Table 1: one row a configuration, as CSV, Markdown and LaTeX."""

from pathlib import Path

import pandas as pd

from replay.storage import write_text

COLUMNS = [
    "configuration",
    "model",
    "n",
    "refeed_pct",
    "refeed_polarity_pct",
    "floor_pct",
    "floor_polarity_pct",
    "excess_pp",
    "t_clustered",
    "z",
]
CSV_DECIMALS = 6
UNDEFINED = "\N{EM DASH}"


def excess_pp(analysis: dict) -> float | None:
    """Re-feed minus floor disagreement on the common set, percentage points, unrounded."""
    refeed, floor = (analysis["common_set"][name]["flip_rate"] for name in ("refeed", "floor"))
    return None if refeed is None else 100 * (refeed - floor)


def table1(rows: list[dict]) -> pd.DataFrame:
    """Table 1 of the paper from rows of {name, label, model, analysis}.

    Columns are ``COLUMNS``: ``configuration`` is the name, ``n`` the size of the common eligible
    set, the rest percentages, percentage points and statistics, NaN where undefined. The index
    holds the labels under which ``printed`` shows the rows.
    """
    values = [[row["name"], row["model"], *_statistics(row["analysis"])] for row in rows]
    table = pd.DataFrame(values, columns=COLUMNS, index=[row["label"] for row in rows])
    return table.astype(dict.fromkeys(COLUMNS[3:], float))


def _statistics(analysis: dict) -> list:
    refeed, floor = analysis["common_set"]["refeed"], analysis["common_set"]["floor"]
    rates = [side[key] for side in (refeed, floor) for key in ("flip_rate", "polarity_rate")]
    return [
        refeed["n"],
        *(None if rate is None else 100 * rate for rate in rates),
        excess_pp(analysis),
        analysis["clustered"]["t"],
        analysis["mcnemar"]["z"],
    ]


def number(value: float | None, spec: str) -> str:
    """``value`` in format ``spec``, or an em dash where it is undefined (None or NaN)."""
    return UNDEFINED if value is None or pd.isna(value) else format(value, spec)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 as text, laid out as in the paper; polarity reversals in parentheses."""

    def rate(name: str) -> list[str]:
        pairs = zip(table[f"{name}_pct"], table[f"{name}_polarity_pct"], strict=True)
        return [
            UNDEFINED if pd.isna(total) else f"{total:.1f}% ({polarity:.1f})"
            for total, polarity in pairs
        ]

    def column(name: str, spec: str) -> list[str]:
        return [number(value, spec) for value in table[name]]

    return pd.DataFrame(
        {
            "Configuration": table.index.astype(str),
            "Model": list(table["model"]),
            "n": [str(n) for n in table["n"]],
            "Re-feed (pol.)": rate("refeed"),
            "Floor (pol.)": rate("floor"),
            "Excess (pp)": column("excess_pp", "+z.1f"),
            "t (clustered)": column("t_clustered", "z.2f"),
            "z": column("z", "z.2f"),
        },
        dtype=str,
    )


def write_table(
    table: pd.DataFrame, csv: str | Path, markdown: str | Path, latex: str | Path, note: str = ""
) -> None:
    """Write ``table1``'s result: numbers to ``csv``, the printed form and ``note`` to the others.

    The CSV leaves undefined values empty. The LaTeX file is one tabular for ``\\input``; its
    first line names the packages it needs.
    """
    write_text(csv, table.round(CSV_DECIMALS).to_csv(index=False))
    text = printed(table)
    write_text(markdown, _markdown(text) + (f"\n{note}.\n" if note else ""))
    style = text.style.hide(axis="index")
    style.format(escape="latex").format_index(escape="latex", axis="columns")
    body = style.to_latex(hrules=True, column_format="ll" + "r" * (len(text.columns) - 2))
    needs = "% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}\n"
    write_text(latex, needs + (f"% {note}\n" if note else "") + body)


def _markdown(text: pd.DataFrame) -> str:
    rule = ["---"] * 2 + ["---:"] * (len(text.columns) - 2)
    lines = [list(text.columns), rule, *text.to_numpy().tolist()]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )
