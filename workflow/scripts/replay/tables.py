"""Table 1: one row a configuration, as CSV, Markdown and LaTeX."""

from collections.abc import Iterable
from pathlib import Path
from typing import IO

import pandas as pd

from replay.protocol import INVARIANT, REFERENCE
from replay.storage import read_json, write_text

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
# Beyond half, more rewards are 0 for want of an answer than are given for what an answer says.
MOST_UNGRADED = 0.5
CAPTION = (
    "How often the sign of the credit estimate differs from exact pass 1. n: eligible pivots;"
    " re-feed and floor: share of n under re-feed and under the replica, with polarity reversals in"
    " parentheses; excess: percentage points; t: paired over problems; z: McNemar's, over pivots."
)
FLOAT = r"""\begin{{table*}}
\centering\{size}\setlength{{\tabcolsep}}{{{gap}pt}}
\caption{{{caption}}}
\label{{tab:{label}}}
{body}\end{{table*}}
"""
NEEDS = r"% needs \usepackage{booktabs}, \usepackage{tabularx} and \usepackage[T1]{fontenc}"
# A LaTeX column whose text wraps. TeX hyphenates a cell's first word only after a space.
WRAPPED = r">{\raggedright\arraybackslash\hspace{0pt}}X"
SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    }
)


def excess_pp(analysis: dict) -> float | None:
    """Re-feed minus floor disagreement on the common set, percentage points, unrounded."""
    refeed, floor = (analysis["common_set"][name]["flip_rate"] for name in ("refeed", "floor"))
    return None if refeed is None else 100 * (refeed - floor)


def ungraded(rows: list[dict]) -> str | None:
    """What to know of rows of {label, analysis} most of whose exact 1 continuations are graded
    neither right nor wrong, without the last full stop; None if there is no such row.

    Of a row without recorded outcomes nothing is said.
    """
    shares = []
    for row in rows:
        rates = row["analysis"]["rates"][REFERENCE]
        if rates and (total := rates["unparsed"] + rates["truncated"]) > MOST_UNGRADED:
            parts = ", ".join(f"{100 * rates[key]:.1f}% {key}" for key in ("unparsed", "truncated"))
            shares.append(f"{100 * total:.1f}% in “{row['label']}” ({parts})")
    if not shares:
        return None
    return (
        f"Of the exact 1 continuations {', '.join(shares)} were graded neither right nor wrong:"
        " their reward is 0 whatever they say, so a sign tells as much of whether an answer could"
        " be read as of whether it is right. Against unparsed ones change prompt.instruction or"
        " grading.grader, against truncated ones raise continuations.max_tokens"
    )


def table1(rows: list[dict]) -> pd.DataFrame:
    """Table 1 of the paper from rows of {name, label, model, analysis}.

    Columns are ``COLUMNS``: ``configuration`` is the name, ``n`` the size of the common eligible
    set, the rest percentages, percentage points and statistics, NaN where undefined. The index
    holds the labels under which ``printed`` shows the rows.

    A row may have ``invariance``, the verdict of its engine's self-check. Where one is not
    invariant, the labels say so, and a last column ``invariance`` holds the verdicts.
    """
    values = [[row["name"], row["model"], *_statistics(row["analysis"])] for row in rows]
    table = pd.DataFrame(values, columns=COLUMNS, index=[marked(row) for row in rows])
    table = table.astype(dict.fromkeys(COLUMNS[3:], float))
    if any(check_failed(row) for row in rows):
        table["invariance"] = [row.get("invariance") for row in rows]
    return table


def check_failed(row: dict) -> bool:
    """Whether the self-check of the row's engine found it not to be invariant."""
    verdict = row.get("invariance")
    return not pd.isna(verdict) and verdict != INVARIANT


def marked(row: dict) -> str:
    """The row's label, which says so where the self-check of the row's engine failed."""
    return f"{row['label']} ({row['invariance']})" if check_failed(row) else row["label"]


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
    table: pd.DataFrame,
    csv: str | Path,
    markdown: str | Path,
    latex: str | Path,
    notes: Iterable[str] = (),
) -> None:
    """Write ``table1``'s result: numbers to ``csv``, the printed form and ``notes`` to the others.

    The CSV leaves undefined values empty. The LaTeX file is one float for ``\\input``, as wide as
    the text, over both columns where there are two; its first line names the packages it needs.
    """
    write_text(csv, table.round(CSV_DECIMALS).to_csv(index=False))
    text = printed(table)
    write_markdown(text, 2, markdown, notes)
    layout = [WRAPPED] * 2 + ["r"] * (len(text.columns) - 2)
    write_float(text, layout, CAPTION, "sign-changes", latex, notes)


def write_float(
    text: pd.DataFrame,
    layout: list[str],
    caption: str,
    label: str,
    path: str | Path,
    notes: Iterable[str] = (),
    size: str = "small",
    gap: int = 4,
    most: int | None = None,
) -> None:
    """Write a table of strings as a LaTeX float as wide as the text.

    ``layout`` holds LaTeX's type of each column, ``caption`` is plain text, ``size`` names a size
    of type and ``gap`` is half the space between columns in points. ``notes`` become comments.
    Where ``most`` is given and the first column is followed by more columns than that, as many
    floats as it takes share them, and each repeats the first.
    """
    count = len(text.columns)
    step = most or count
    starts = range(1, max(count, 2), step)
    floats = []
    for part, start in enumerate(starts, start=1):
        columns = [0, *range(start, min(start + step, count))]
        body = latex_table(text.iloc[:, columns], [layout[column] for column in columns])
        of = f" Part {part} of {len(starts)}." if len(starts) > 1 else ""
        name = label if part == 1 else f"{label}-{part}"
        heading = escaped(caption + of)
        floats.append(FLOAT.format(size=size, gap=gap, caption=heading, label=name, body=body))
    write_text(path, "\n".join([NEEDS, *(f"% {note}" for note in notes), *floats]))


def write_markdown(
    text: pd.DataFrame, texts: int, path: str | Path, notes: Iterable[str] = ()
) -> None:
    write_text(path, markdown_table(text, texts) + "".join(f"\n{note}.\n" for note in notes))


def latex_table(text: pd.DataFrame, layout: list[str]) -> str:
    """A table of strings as a tabularx as wide as the text with columns of this ``layout``."""
    style = text.style.hide(axis="index")
    style.format(escaped).format_index(escaped, axis="columns")
    columns = r"\textwidth}{@{}" + "".join(layout) + "@{}"
    return style.to_latex(hrules=True, column_format=columns).replace("{tabular}", "{tabularx}")


def escaped(text: str) -> str:
    """Plain text as LaTeX."""
    latex = text.translate(SPECIAL)
    # At the start of a row these would be arguments of what ends the row before.
    return "{}" + latex if latex.startswith(("[", "*")) else latex


def markdown_table(text: pd.DataFrame, texts: int) -> str:
    """A table of strings as Markdown; its first ``texts`` columns are set left, others right."""
    rule = ["---"] * texts + ["---:"] * (len(text.columns) - texts)
    lines = [list(text.columns), rule, *text.to_numpy().tolist()]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def with_contents(rows: list[dict], **paths: list[str]) -> list[dict]:
    """Rows with what their files hold: ``analysis=paths`` adds ``analysis``, a path for a row."""
    contents = [map(read_json, files) for files in paths.values()]
    return [row | dict(zip(paths, c, strict=True)) for row, *c in zip(rows, *contents, strict=True)]


def with_verdicts(rows: list[dict], checks: list[str]) -> list[dict]:
    """Rows with ``invariance``, from the self-checks' files that are named after the engines."""
    verdicts = {Path(path).stem: read_json(path)["verdict"] for path in checks}
    return [row | {"invariance": verdicts.get(row["engine_set"])} for row in rows]


def invariance_table(results: dict[str, dict]) -> pd.DataFrame:
    """One row an engine and question of its self-check, from ``invariance.run``'s results.

    ``identical`` of ``sequences`` had no difference; ``first_position`` is the lowest generated
    position that differed (none: not available) and ``max_delta_nats`` the largest difference of a
    top logprob where sequences first differed.
    """
    rows = [
        {
            "engine": name,
            "check": check["name"],
            "device": result["engine"]["device"],
            "attention": attention(result["engine"]),
            "process": result["engine"]["engine_process"],
            "identical": check["identical"],
            "sequences": check["sequences"],
            "first_position": (check["first"] or {}).get("position"),
            "max_delta_nats": check["max_delta"],
            "verdict": result["verdict"],
        }
        for name, result in results.items()
        for check in result["checks"]
    ]
    return pd.DataFrame(rows).astype({"first_position": "Int64"})


def attention(facts: dict) -> str:
    """Attention backend of an engine, with its version where it has one."""
    version = facts["flash_attn_version"]
    return facts["attention_backend"] + (f" {version}" if version else "")


def write_invariance(
    checks: list[str], csv: str | Path, markdown: str | Path, console: IO[str]
) -> None:
    """Write the self-checks of all engines as one table, and show it."""
    table = invariance_table({Path(path).stem: read_json(path) for path in checks})
    write_text(csv, table.to_csv(index=False))
    text = table.assign(max_delta_nats=table["max_delta_nats"].map("{:.3g}".format)).astype(object)
    shown = markdown_table(text.where(text.notna(), UNDEFINED).astype(str), texts=5)
    write_text(markdown, shown)
    print(shown, file=console)
