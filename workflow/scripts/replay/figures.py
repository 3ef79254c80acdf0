"""Figures 1 to 3 of the paper, and 4 and 5, as PDF and PNG; the frame behind each is its CSV.

Figures are 3.3 inches (one column) or 7 inches (two) wide, and fonts at least 7 pt at that size.
Colour never carries meaning alone: re-feed is red and hatched or marked by a square, the replica
floor grey and plain or marked by a circle. The files hold no timestamps, so equal input gives equal
bytes.
"""

import textwrap
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter

from replay.analysis import common_set, flipped, pivot_frame
from replay.controls import COMPARISONS
from replay.storage import write_text
from replay.tables import UNDEFINED, check_failed

RED, GREY = "#b2182b", "#6b6b6b"
# Pale enough at the top for black counts and red outlines.
PALE = ListedColormap(plt.get_cmap("Blues")(np.linspace(0.06, 0.6, 256)))
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLUMN_IN, PAGE_IN = 3.3, 7
PNG_DPI = 200
# Groups of bars that fit into one column.
COLUMN_GROUPS = 3
DIGITS = 9  # significant ones in a CSV
# Width of a digit at 7 pt, and of a panel of figure 1.
DIGIT_PT, PANEL_PT = 4.6, 200
# Width of a cell's edge in its own colour: viewers show gaps between cells without one.
HAIRLINE_PT = 0.3
# Figure 5: the label, colour, marker and line of each comparison.
OVERLAPS = {
    "refeed": ("re-feed", RED, "s", "-"),
    "replica": ("replica", GREY, "o", "--"),
}
# Figure 3: the label, colour, marker and line width of each comparison.
PROBES = {
    "exact2": ("replica", GREY, "o", 2.4),
    "refeed": ("re-feed", RED, "s", 1.2),
}
# Figure 4: the label, colour and marker of effects, and of floors.
EFFECTS = {False: ("effect", RED, "s"), True: ("replica floor", GREY, "o")}
PERCENTS = ("percent", "ci95_low", "ci95_high")
# One a series of figure 3; the first, solid one has filled markers.
LINES = ("-", "--", ":", "-.")
# Steps drawn per curve of figure 3; more would only swell the PDF.
MAX_STEPS = 2000


def draw_all(rows: list[dict], pdfs: list[str], pngs: list[str], csvs: list[str]) -> None:
    """Figures 1 to 5 of a run, in that order, into as many PDF, PNG and CSV files.

    ``rows`` are those of ``tables.table1`` with ``numerics`` and ``records`` (a records file's
    content). Figure 1 shows the first row, figure 3 pools the rows with the same numerics, apart
    from those whose engine's self-check failed, and without those whose ``in_figure3`` is false.
    """
    main = rows[0]
    records = main["records"]
    title = f"{main['label']}, {main['model']}"
    joint = joint_counts(records["pivots"], records["config"]["k"])
    rates, effects, overlaps = sign_rates(rows), control_effects(rows), selection_overlaps(rows)
    series: dict[str, list[dict]] = {}
    for row in (r for r in rows if r.get("in_figure3", True)):
        failed = check_failed(row)
        name = f"{row['numerics']} numerics" + (", check failed" if failed else "")
        series.setdefault(name, []).extend(row["records"]["pivots"])
    deltas = logprob_deltas(series)
    figure1(joint, records["config"]["k"], title, pdfs[0], pngs[0])
    figure2(rates, pdfs[1], pngs[1])
    figure3(deltas, pdfs[2], pngs[2])
    figure4(effects, pdfs[3], pngs[3])
    figure5(overlaps, pdfs[4], pngs[4])
    for frame, csv in zip((joint, rates, deltas, effects, overlaps), csvs, strict=True):
        write_text(csv, frame.to_csv(index=False, float_format=f"%.{DIGITS}g"))


def joint_counts(records: list[dict], k: int) -> pd.DataFrame:
    """Figure 1: how many pivots of the common eligible set have which pair of estimates."""
    common = common_set(pivot_frame(records, k))
    parts = []
    for p in ("refeed", "exact2"):
        pairs = common[["A_exact1", f"A_{p}"]].set_axis(["estimate_exact1", "estimate"], axis=1)
        counts = pairs.assign(sign_differs=flipped(common, p)).value_counts(sort=False)
        parts.append(counts.rename("pivots").reset_index().assign(comparison=p))
    order = ["comparison", "estimate_exact1", "estimate", "sign_differs", "pivots"]
    return pd.concat(parts, ignore_index=True)[order]


def figure1(joint: pd.DataFrame, k: int, title: str, pdf: str | Path, png: str | Path) -> None:
    """Joint distribution of the estimate under exact pass 1 (x) and a comparison pass (y).

    ``joint`` is the result of ``joint_counts``, drawn on the grid of multiples of 1/K, re-feed
    beside the replica. Counts are left out where they do not fit into their cells (K above 8 or
    so). Cells that disagree in sign are outlined in red.
    """
    if joint.empty:
        _message(f"{title}\nNo eligible pivots: none has a nonzero estimate.", pdf, png)
        return
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(PAGE_IN, 3.75), layout="compressed")
        largest = joint["pivots"].max()
        norm = LogNorm(1, max(2, largest))
        names = {"refeed": "re-feed", "exact2": "replica (exact pass 2)"}
        for ax, (p, name) in zip(axes, names.items(), strict=True):
            part = joint[joint["comparison"] == p]
            grid = _grid(part, k)
            mesh = _heatmap(ax, grid, k, norm)
            if DIGIT_PT * len(str(largest)) * (2 * k + 1) <= PANEL_PT:
                _print_counts(ax, grid)
            n, flips = part["pivots"].sum(), part.loc[part["sign_differs"], "pivots"].sum()
            ax.set_title(f"{name}: sign differs at {flips} of {n} ({flips / n:.1%})")
            ax.set_xlabel(r"$\hat{A}_t$ under exact pass 1")
            ax.set_ylabel(rf"$\hat{{A}}_t$ under {name}")
        ticks = [step * 10**power for power in range(7) for step in (1, 2, 5)]
        bar = fig.colorbar(
            mesh, ax=axes, label="pivots (log scale)", pad=0.01, shrink=0.7, aspect=30,
            ticks=[tick for tick in ticks if tick <= norm.vmax], format="{x:.0f}",
        )  # fmt: skip
        bar.solids.set(rasterized=False, edgecolor="face", linewidth=HAIRLINE_PT)
        bar.minorticks_off()
        note = f"{n} eligible pivot{'' if n == 1 else 's'}; red outline = signs differ"
        fig.suptitle(f"{textwrap.fill(title, 90)}\n{note}", fontsize=9)
        _save(fig, pdf, png)


def _grid(part: pd.DataFrame, k: int) -> np.ndarray:
    """Counts indexed [comparison estimate, exact estimate], both in units of 1/K from -K."""
    y, x = ((part[name] * k).round().astype(int) + k for name in ("estimate", "estimate_exact1"))
    grid = np.zeros((2 * k + 1, 2 * k + 1), dtype=int)
    grid[y, x] = part["pivots"]
    return grid


def _heatmap(ax: Axes, grid: np.ndarray, k: int, norm: LogNorm):
    places, counts = np.arange(2 * k + 1), np.ma.masked_equal(grid, 0)
    mesh = ax.pcolormesh(
        places, places, counts, cmap=PALE, norm=norm, edgecolor="face", linewidth=HAIRLINE_PT
    )
    ax.set_aspect("equal")
    sign = np.sign(np.arange(-k, k + 1))
    differ = sign[:, None] != sign[None, :]
    for cells, width in ((differ & (grid == 0), 0.3), (differ & (grid > 0), 1.1)):
        boxes = [Rectangle((x - 0.43, y - 0.43), 0.86, 0.86) for y, x in np.argwhere(cells)]
        ax.add_collection(PatchCollection(boxes, facecolor="none", edgecolor=RED, lw=width))
    step = max(1, k // 4)
    ticks = np.arange(k % step, 2 * k + 1, step)
    labels = [f"{(tick - k) / k:.3g}" for tick in ticks]
    ax.set_xticks(ticks, labels)
    ax.set_yticks(ticks, labels)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return mesh


def _print_counts(ax: Axes, grid: np.ndarray) -> None:
    for y, x in np.argwhere(grid):
        ax.text(x, y, grid[y, x], ha="center", va="center", fontsize=7)


def sign_rates(rows: list[dict]) -> pd.DataFrame:
    """Figure 2: sign changes of re-feed and of the replica floor, percent of n eligible pivots.

    ``rows`` are those of ``tables.table1``; ``percent`` is NaN where n is 0.
    """
    return pd.DataFrame(
        [
            (row["name"], row["label"], side, rates["n"], rates["flips"], rates["flip_rate"])
            for row in rows
            for side in ("refeed", "floor")
            for rates in [row["analysis"]["common_set"][side]]
        ],
        columns=["configuration", "label", "comparison", "n", "sign_changes", "percent"],
    ).assign(percent=lambda frame: 100 * frame["percent"].astype(float))


def figure2(rates: pd.DataFrame, pdf: str | Path, png: str | Path) -> None:
    """Disagreement rate of re-feed beside the replica floor, one group a configuration.

    ``rates`` is the result of ``sign_rates``. An undefined rate is an em dash instead of a bar.
    """
    if rates.empty:
        _message("No configurations.", pdf, png)
        return
    with plt.rc_context(STYLE):
        groups = rates.drop_duplicates("configuration")
        width = COLUMN_IN if len(groups) <= COLUMN_GROUPS else PAGE_IN
        fig, ax = plt.subplots(figsize=(width, 3), layout="constrained")
        for name, label, offset, look in (
            ("refeed", "re-feed", -0.2, {"color": RED, "hatch": "////", "edgecolor": "white"}),
            ("floor", "replica floor", 0.2, {"color": GREY}),
        ):
            heights = rates.loc[rates["comparison"] == name, "percent"]
            places = np.arange(len(groups)) + offset
            bars = ax.bar(places, heights.fillna(0), 0.4, label=label, **look)
            texts = [UNDEFINED if pd.isna(height) else f"{height:.1f}" for height in heights]
            ax.bar_label(bars, texts, fontsize=7, padding=1)
        labels = [_group_label(*group) for group in zip(groups["label"], groups["n"], strict=True)]
        ax.set_xticks(range(len(groups)), labels)
        ax.tick_params(axis="x", length=0)
        ax.set_ylim(0, max(10, 1.1 * ax.dataLim.y1))
        ax.set_ylabel("sign differs from exact pass 1\n(% of n eligible pivots)")
        fig.legend(loc="outside upper center", ncols=2, frameon=False)
        _save(fig, pdf, png)


def _group_label(label: str, n: int) -> str:
    wrapped = textwrap.fill(label.replace("_", "_ "), 14).replace("_ ", "_")
    return f"{wrapped}\nn = {n}"


def logprob_deltas(series: dict[str, list[dict]]) -> pd.DataFrame:
    """Figure 3: distribution of the per-pivot maximum first-token logprob difference, in nats.

    ``series`` maps labels to records. A row counts the pivots up to its ``delta_nats``, of n; the
    first of a curve is at 0. A long curve is thinned to ``MAX_STEPS`` differences above 0.
    """
    parts = []
    for label, records in series.items():
        for p in ("exact2", "refeed"):
            if len(deltas := _deltas(records, p)):
                zeros = np.count_nonzero(deltas == 0)
                ranks = np.linspace(zeros, len(deltas), MAX_STEPS + 1).astype(int)
                ranks = np.unique(ranks)[1:]
                curve = {
                    "series": label,
                    "comparison": p,
                    "delta_nats": [0, *deltas[ranks - 1]],
                    "cumulative_pivots": [zeros, *ranks],
                    "n": len(deltas),
                }
                parts.append(pd.DataFrame(curve))
    columns = ["series", "comparison", "delta_nats", "cumulative_pivots", "n"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def figure3(deltas: pd.DataFrame, pdf: str | Path, png: str | Path) -> None:
    """Cumulative distribution of the per-pivot maximum first-token logprob difference.

    ``deltas`` is the result of ``logprob_deltas``: a replica and a re-feed curve a series. The
    share at exactly zero stands in a panel of its own, left of the logarithmic axis.
    """
    if deltas.empty:
        _message("No pivot has a greedy probe: nothing to draw.", pdf, png)
        return
    lines = dict(zip(deltas["series"].unique(), cycle(LINES), strict=False))
    curves = list(deltas.groupby(["series", "comparison"], sort=False))
    nonzero = deltas.loc[deltas["delta_nats"] > 0, "delta_nats"]
    low, high = (nonzero.min(), nonzero.max()) if len(nonzero) else (1e-8, 0.9)
    span = 10 ** np.floor(np.log10(0.99 * low)), 10 ** np.ceil(np.log10(1.01 * high))
    with plt.rc_context(STYLE):
        fig, (zero, log) = plt.subplots(
            1, 2, figsize=(COLUMN_IN, 2.4 + 0.28 * len(curves)), sharey=True,
            layout="constrained", width_ratios=(1, 5),
        )  # fmt: skip
        for place, ((label, p), curve) in enumerate(curves):
            name, color, marker, width = PROBES[p]
            line, n = lines[label], curve["n"].iloc[0]
            shares = 100 * curve["cumulative_pivots"] / n
            look = {"color": color, "fillstyle": "full" if line == "-" else "none"}
            zero.vlines(place, 0, shares.iloc[0], color=color, linestyle=line, linewidth=width)
            zero.plot(place, shares.iloc[0], marker, markersize=4, **look)
            x = [span[0], *curve["delta_nats"].iloc[1:], span[1]]
            log.plot(x, [*shares, 100], line, color=color, drawstyle="steps-post", lw=width)
            text = f"{name}, {label}:\nn = {n}, {shares.iloc[0]:.1f}% exactly 0"
            log.plot([], [], line, marker=marker, markersize=4, label=text, lw=width, **look)
        zero.set_xlim(-1, len(curves))
        zero.set_xticks([(len(curves) - 1) / 2], ["exactly 0"])
        zero.set_ylim(0, 103)
        zero.set_ylabel("cumulative share of pivots (%)")
        log.set_xscale("log")
        log.set_xlim(span)
        log.xaxis.set_minor_formatter(NullFormatter())  # within a decade they print over each other
        log.set_xlabel(
            "largest first-token logprob difference\nfrom exact pass 1 over both arms (nats)"
        )
        log.spines.left.set_linestyle(":")
        log.tick_params(axis="y", length=0)
        fig.legend(loc="outside lower center", frameon=False)
        _save(fig, pdf, png)


def _deltas(records: list[dict], compared: str) -> np.ndarray:
    values = [record.get(f"greedy_first_logprob_delta_{compared}") for record in records]
    return np.sort(np.array([value for value in values if value is not None], dtype=float))


def control_effects(rows: list[dict]) -> pd.DataFrame:
    """Figure 4: sign changes of each comparison of two passes, percent of n, with its interval.

    ``rows`` are those of ``tables.table1``; n counts the pivots with a nonzero estimate in any pass
    of the configuration. Undefined values are NaN; comparisons that were not run are absent.
    """
    columns = ["configuration", "label", "n", "comparison", "reference", "compared"]
    return pd.DataFrame(
        [
            (
                row["name"],
                row["label"],
                comparison["n"],
                name,
                comparison["reference"],
                comparison["compared"],
                comparison["flips"],
                comparison["rate"]["estimate"],
                *(comparison["rate"]["ci95"] or (None, None)),
            )
            for row in rows
            for name, comparison in row["analysis"]["comparisons"].items()
        ],
        columns=[*columns, "sign_changes", *PERCENTS],
    ).assign(**{name: lambda f, name=name: 100 * f[name].astype(float) for name in PERCENTS})


def figure4(effects: pd.DataFrame, pdf: str | Path, png: str | Path) -> None:
    """Sign changes of each comparison with intervals, a panel a configuration.

    ``effects`` is the result of ``control_effects``. A hollow marker has no interval, because that
    is undefined; an em dash stands where no pivot is eligible.
    """
    if effects.empty:
        _message("No configurations.", pdf, png)
        return
    panels = [panel for _, panel in effects.groupby("configuration", sort=False)]
    names = [name for name in COMPARISONS if name in set(effects["comparison"])]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(
            lines, columns, figsize=(PAGE_IN if columns > 1 else COLUMN_IN,
            0.8 + lines * (0.5 + 0.17 * len(names))), sharex=True, sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax, panel in zip(axes.flat, panels, strict=False):
            _effect_panel(ax, panel.set_index("comparison"), names)
        for ax in axes.flat[max(0, len(panels) - columns) : len(panels)]:
            ax.tick_params(labelbottom=True)
        axes[0, 0].set_yticks(range(len(names)), [COMPARISONS[name].label for name in names])
        axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
        largest = effects[["percent", "ci95_high"]].max(axis=None)
        axes[0, 0].set_xlim(-0.03 * max(10, largest), 1.05 * max(10, largest))
        fig.supxlabel("sign differs between the two passes (% of n eligible pivots)", fontsize=8)
        handles = [
            Line2D([], [], color=color, marker=marker, markersize=4, lw=1, label=label)
            for label, color, marker in EFFECTS.values()
        ]
        fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
        _save(fig, pdf, png)


def _effect_panel(ax: Axes, panel: pd.DataFrame, names: list[str]) -> None:
    for place, name in enumerate(names):
        if name not in panel.index:
            ax.text(0, place, "not run", va="center", fontsize=7)
            continue
        point = panel.loc[name]
        if pd.isna(point["percent"]):
            ax.text(0, place, UNDEFINED, va="center", fontsize=7)
            continue
        _, color, marker = EFFECTS[COMPARISONS[name].floor]
        known = pd.notna(point["ci95_low"])
        if known:
            ax.hlines(place, point["ci95_low"], point["ci95_high"], color=color, lw=0.9)
        fill = color if known else "white"
        ax.plot(point["percent"], place, marker, color=color, markerfacecolor=fill, markersize=4)
    ax.grid(axis="x", lw=0.3)
    label = textwrap.fill(panel["label"].iloc[0], 40)
    ax.set_title(f"{label}, n = {panel['n'].iloc[0]}", fontsize=7)


def selection_overlaps(rows: list[dict]) -> pd.DataFrame:
    """Figure 5: Jaccard overlap with exact pass 1's selection, by threshold.

    ``rows`` are those of ``tables.table1``; n counts eligible pivots, the bounds are those of the
    problem-bootstrap interval, and undefined values are NaN.
    """
    columns = ["configuration", "label", "n", "comparison", "threshold", "jaccard"]
    return pd.DataFrame(
        [
            (
                row["name"],
                row["label"],
                row["analysis"]["common_set"]["refeed"]["n"],
                name,
                point["threshold"],
                point[name]["estimate"],
                *(point[name]["ci95"] or (None, None)),
            )
            for row in rows
            for name in OVERLAPS
            for point in row["analysis"]["jaccard_curve"]
        ],
        columns=[*columns, "ci95_low", "ci95_high"],
    ).astype(dict.fromkeys(("jaccard", "ci95_low", "ci95_high"), float))


def figure5(overlaps: pd.DataFrame, pdf: str | Path, png: str | Path) -> None:
    """Selection overlap with exact pass 1 against the threshold, a panel a configuration.

    ``overlaps`` is the result of ``selection_overlaps``. Bars are the intervals; a hollow marker
    has none, because the interval is undefined. Where nothing is selected there is no point.
    """
    if overlaps.empty:
        _message("No configurations.", pdf, png)
        return
    panels = [panel for _, panel in overlaps.groupby("configuration", sort=False)]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(
            lines, columns, figsize=(COLUMN_IN, 0.75 + 1.5 * lines), sharex=True, sharey=True,
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax, panel in zip(axes.flat, panels, strict=False):
            _overlap_panel(ax, panel)
        for ax in axes.flat[max(0, len(panels) - columns) : len(panels)]:
            ax.tick_params(labelbottom=True)
        axes[0, 0].set(xlim=(0, 1.08), ylim=(-0.03, 1.06), yticks=[0, 0.5, 1])
        axes[0, 0].set_xticks([0, 0.5, 1])
        fig.supxlabel(r"selected if $|\hat{A}_t| \geq$ threshold", fontsize=8)
        fig.supylabel("Jaccard overlap with exact pass 1", fontsize=8)
        handles = [
            Line2D([], [], color=color, marker=marker, linestyle=line, markersize=3.5, lw=1,
                   label=label)
            for label, color, marker, line in OVERLAPS.values()
        ]  # fmt: skip
        fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
        _save(fig, pdf, png)


def _overlap_panel(ax: Axes, panel: pd.DataFrame) -> None:
    # The two series stand beside each other, not on top.
    shift = min(0.02, 0.15 / panel["threshold"].nunique())
    drawn = panel.dropna(subset="jaccard")
    for side, (name, (_, color, marker, line)) in zip((1, -1), OVERLAPS.items(), strict=True):
        points = drawn[drawn["comparison"] == name]
        places = points["threshold"] + side * shift
        ax.plot(places, points["jaccard"], line, color=color, lw=1)
        for x, y, low, high in zip(
            places, points["jaccard"], points["ci95_low"], points["ci95_high"], strict=True
        ):
            fill = "white" if pd.isna(low) else color
            if pd.notna(low):
                ax.vlines(x, low, high, color=color, lw=0.9)
            ax.plot(x, y, marker, color=color, markerfacecolor=fill, markersize=3.5, lw=0)
    label = textwrap.fill(panel["label"].iloc[0], 26)
    ax.set_title(f"{label}\nn = {panel['n'].iloc[0]}", fontsize=7)
    if drawn.empty:
        ax.text(0.53, 0.5, "nothing is selected", ha="center", fontsize=7)


def _message(text: str, pdf: str | Path, png: str | Path) -> None:
    with plt.rc_context(STYLE):
        fig = plt.figure(figsize=(COLUMN_IN, 1.6))
        wrapped = "\n".join(textwrap.fill(line, 44) for line in text.splitlines())
        fig.text(0.5, 0.5, wrapped, ha="center", va="center", fontsize=9)
        _save(fig, pdf, png)


def _save(fig: Figure, pdf: str | Path, png: str | Path) -> None:
    fig.savefig(pdf, metadata={"CreationDate": None})
    fig.savefig(png, dpi=PNG_DPI)
    plt.close(fig)
