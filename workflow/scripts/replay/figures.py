"""Figures 1 to 3 of the paper, and figure 5, each as a PDF and a PNG, from records and analyses.

Fonts are at least 7 pt at the drawn size (3.4 to 7 inches wide). Colour never carries meaning
alone: re-feed is red and hatched or marked by a square, the replica floor grey and plain or marked
by a circle. The files hold no timestamps, so equal input gives equal bytes.
"""

import textwrap
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from replay.analysis import common_set, flipped, pivot_frame
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
# Width of a digit at 7 pt, and of a panel of figure 1 beside or above the other.
DIGIT_PT, BESIDE_PT, STACKED_PT = 4.6, 200, 460
# Figure 5: the label, colour, marker and line of each comparison.
OVERLAPS = {
    "refeed": ("re-feed", RED, "s", "-"),
    "replica": ("replica", GREY, "o", "--"),
}
# One a series of figure 3; the first, solid one has filled markers.
LINES = ("-", "--", ":", "-.")
# Steps drawn per curve of figure 3; more would only swell the PDF.
MAX_STEPS = 2000


def draw_all(rows: list[dict], pdfs: list[str], pngs: list[str]) -> None:
    """Figures 1, 2, 3 and 5 of a run, in that order, into as many PDF and PNG files.

    ``rows`` are those of ``tables.table1`` with ``numerics`` and ``records`` (a records file's
    content). Figure 1 shows the first row, figure 3 pools the rows with the same numerics, apart
    from those whose engine's self-check failed, and without those whose ``in_figure3`` is false.
    """
    main = rows[0]
    records = main["records"]
    title = f"{main['label']}, {main['model']}"
    figure1(records["pivots"], records["config"]["k"], title, pdfs[0], pngs[0])
    figure2(rows, pdfs[1], pngs[1])
    series: dict[str, list[dict]] = {}
    for row in (r for r in rows if r.get("in_figure3", True)):
        failed = check_failed(row.get("invariance"))
        name = f"{row['numerics']} numerics" + (", check failed" if failed else "")
        series.setdefault(name, []).extend(row["records"]["pivots"])
    figure3(series, pdfs[2], pngs[2])
    figure5(rows, pdfs[3], pngs[3])


def figure1(records: list[dict], k: int, title: str, pdf: str | Path, png: str | Path) -> None:
    """Joint distribution of the estimate under exact pass 1 (x) and a comparison pass (y).

    Counts of the common eligible set on the grid of multiples of 1/K, re-feed beside the replica.
    The panels are stacked where that takes cells too small for their counts (K above 8 or so), and
    the counts left out where even that does not help. Cells that disagree in sign are outlined in
    red.
    """
    common = common_set(pivot_frame(records, k))
    if common.empty:
        reason = f"No eligible pivots: none of {len(records)} has a nonzero estimate."
        _message(f"{title}\n{reason}", pdf, png)
        return
    with plt.rc_context(STYLE):
        counts = {p: _joint_counts(common, p, k) for p in ("refeed", "exact2")}
        largest = max(grid.max() for grid in counts.values())
        needed = DIGIT_PT * len(str(largest)) * (2 * k + 1)
        beside = needed <= BESIDE_PT
        fig, axes = plt.subplots(
            *((1, 2) if beside else (2, 1)), figsize=(7, 3.75 if beside else 14.5),
            layout="compressed",
        )  # fmt: skip
        norm = LogNorm(1, max(2, largest))
        names = {"refeed": "re-feed", "exact2": "replica (exact pass 2)"}
        for ax, p in zip(axes, counts, strict=True):
            image = _heatmap(ax, counts[p], k, norm)
            if needed <= STACKED_PT:
                _print_counts(ax, counts[p])
            flips = int(flipped(common, p).sum())
            rate = flips / len(common)
            ax.set_title(f"{names[p]}: sign differs at {flips} of {len(common)} ({rate:.1%})")
            ax.set_xlabel(r"$\hat{A}_t$ under exact pass 1")
            ax.set_ylabel(rf"$\hat{{A}}_t$ under {names[p]}")
        ticks = [step * 10**power for power in range(7) for step in (1, 2, 5)]
        bar = fig.colorbar(
            image, ax=axes, label="pivots (log scale)", pad=0.01, shrink=0.7, aspect=30,
            location="right" if beside else "bottom",
            ticks=[tick for tick in ticks if tick <= norm.vmax], format="{x:.0f}",
        )  # fmt: skip
        bar.minorticks_off()
        plural = "" if len(common) == 1 else "s"
        note = f"{len(common)} eligible pivot{plural}; red outline = signs differ"
        fig.suptitle(f"{textwrap.fill(title, 90)}\n{note}", fontsize=9)
        _save(fig, pdf, png)


def _joint_counts(common, compared: str, k: int) -> np.ndarray:
    """Counts indexed [comparison estimate, exact estimate], both in units of 1/K from -K."""
    units = [(common[f"A_{p}"] * k).round().astype(int) + k for p in (compared, "exact1")]
    grid = np.zeros((2 * k + 1, 2 * k + 1), dtype=int)
    np.add.at(grid, tuple(units), 1)
    return grid


def _heatmap(ax: Axes, grid: np.ndarray, k: int, norm: LogNorm):
    image = ax.imshow(np.ma.masked_equal(grid, 0), origin="lower", cmap=PALE, norm=norm)
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
    return image


def _print_counts(ax: Axes, grid: np.ndarray) -> None:
    for y, x in np.argwhere(grid):
        ax.text(x, y, grid[y, x], ha="center", va="center", fontsize=7)


def figure2(rows: list[dict], pdf: str | Path, png: str | Path) -> None:
    """Disagreement rate of re-feed beside the replica floor, one group a configuration.

    ``rows`` are those of ``tables.table1``. An undefined rate is an em dash instead of a bar.
    """
    if not rows:
        _message("No configurations.", pdf, png)
        return
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(max(3.4, len(rows)), 3.2), layout="constrained")
        for name, label, offset, look in (
            ("refeed", "re-feed", -0.2, {"color": RED, "hatch": "////", "edgecolor": "white"}),
            ("floor", "replica floor", 0.2, {"color": GREY}),
        ):
            rates = [row["analysis"]["common_set"][name]["flip_rate"] for row in rows]
            heights = [0 if rate is None else 100 * rate for rate in rates]
            bars = ax.bar(np.arange(len(rows)) + offset, heights, 0.4, label=label, **look)
            texts = [UNDEFINED if rate is None else f"{100 * rate:.1f}" for rate in rates]
            ax.bar_label(bars, texts, fontsize=7, padding=1)
        ax.set_xticks(range(len(rows)), [_group_label(row) for row in rows])
        ax.tick_params(axis="x", length=0)
        ax.set_ylim(0, max(10, 1.1 * ax.dataLim.y1))
        ax.set_ylabel("sign differs from exact pass 1\n(% of n eligible pivots)")
        fig.legend(loc="outside upper center", ncols=2, frameon=False)
        _save(fig, pdf, png)


def _group_label(row: dict) -> str:
    n = row["analysis"]["common_set"]["refeed"]["n"]
    label = textwrap.fill(row["label"].replace("_", "_ "), 15).replace("_ ", "_")
    return f"{label}\nn = {n}"


def figure3(series: dict[str, list[dict]], pdf: str | Path, png: str | Path) -> None:
    """Cumulative distribution of the per-pivot maximum first-token logprob delta.

    Each entry of ``series`` (label: records) gives a replica and a re-feed curve. The share at
    exactly zero stands in a panel of its own, left of the logarithmic axis.
    """
    curves = [
        (f"{name}, {label}", deltas, color, marker, width, line)
        for (label, records), line in zip(series.items(), cycle(LINES), strict=False)
        for p, name, color, marker, width in (
            ("exact2", "replica", GREY, "o", 2.4),
            ("refeed", "re-feed", RED, "s", 1.2),
        )
        if len(deltas := _deltas(records, p))
    ]
    if not curves:
        _message("No pivot has a greedy probe: nothing to draw.", pdf, png)
        return
    nonzero = np.concatenate([deltas[deltas > 0] for _, deltas, *_ in curves])
    low, high = (nonzero.min(), nonzero.max()) if len(nonzero) else (1e-8, 0.9)
    span = 10 ** np.floor(np.log10(0.99 * low)), 10 ** np.ceil(np.log10(1.01 * high))
    with plt.rc_context(STYLE):
        fig, (zero, log) = plt.subplots(
            1, 2, figsize=(4.8, 3 + 0.16 * len(curves)), sharey=True, layout="constrained",
            width_ratios=(1, 7),
        )  # fmt: skip
        for place, (label, deltas, color, marker, width, line) in enumerate(curves):
            at_zero = 100 * np.count_nonzero(deltas == 0) / len(deltas)
            look = {"color": color, "fillstyle": "full" if line == "-" else "none"}
            zero.vlines(place, 0, at_zero, color=color, linestyle=line, linewidth=width)
            zero.plot(place, at_zero, marker, markersize=5, **look)
            log.plot(*_steps(deltas, span), line, color=color, drawstyle="steps-post", lw=width)
            text = f"{label}: n = {len(deltas)}, {at_zero:.1f}% exactly 0"
            log.plot([], [], line, marker=marker, markersize=5, label=text, lw=width, **look)
        zero.set_xlim(-1, len(curves))
        zero.set_xticks([(len(curves) - 1) / 2], ["exactly 0"])
        zero.set_ylim(0, 103)
        zero.set_ylabel("cumulative share of pivots (%)")
        log.set_xscale("log")
        log.set_xlim(span)
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


def _steps(deltas: np.ndarray, span: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Corner points of the empirical distribution of sorted ``deltas`` from span to span."""
    zeros = np.count_nonzero(deltas == 0)
    ranks = np.unique(np.linspace(zeros, len(deltas), MAX_STEPS + 1).astype(int))[1:]
    x = [span[0], *deltas[ranks - 1], span[1]]
    y = [zeros, *ranks, len(deltas)]
    return np.array(x), 100 * np.array(y) / len(deltas)


def figure5(rows: list[dict], pdf: str | Path, png: str | Path) -> None:
    """Selection overlap with exact pass 1 against the threshold, a panel a configuration.

    ``rows`` are those of ``tables.table1``. Bars are the problem-bootstrap intervals; a hollow
    marker has none, because the interval is undefined. Where nothing is selected there is no
    point.
    """
    if not rows:
        _message("No configurations.", pdf, png)
        return
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(
            lines, columns, figsize=(3.4, 0.75 + 1.5 * lines), sharex=True, sharey=True,
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for ax in axes.flat[len(rows) :]:
            ax.set_axis_off()
        for ax, row in zip(axes.flat, rows, strict=False):
            _overlap_panel(ax, row)
        for ax in axes.flat[max(0, len(rows) - columns) : len(rows)]:
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


def _overlap_panel(ax: Axes, row: dict) -> None:
    curve = row["analysis"]["jaccard_curve"]
    # The two series stand beside each other, not on top.
    shift = min(0.02, 0.15 / len(curve))
    for side, (name, (_, color, marker, line)) in zip((1, -1), OVERLAPS.items(), strict=True):
        points = [(p["threshold"] + side * shift, p[name]) for p in curve]
        drawn = [(x, p["estimate"], p["ci95"]) for x, p in points if p["estimate"] is not None]
        ax.plot([x for x, *_ in drawn], [y for _, y, _ in drawn], line, color=color, lw=1)
        for x, y, interval in drawn:
            fill = color if interval else "white"
            if interval:
                ax.vlines(x, *interval, color=color, lw=0.9)
            ax.plot(x, y, marker, color=color, markerfacecolor=fill, markersize=3.5, lw=0)
    sides = row["analysis"]["common_set"]["refeed"]
    label = textwrap.fill(row["label"], 26)
    ax.set_title(f"{label}\nn = {sides['n']}", fontsize=7)
    if not any(p[name]["estimate"] is not None for p in curve for name in OVERLAPS):
        ax.text(0.53, 0.5, "nothing is selected", ha="center", fontsize=7)


def _message(text: str, pdf: str | Path, png: str | Path) -> None:
    with plt.rc_context(STYLE):
        fig = plt.figure(figsize=(4.8, 1.6))
        wrapped = "\n".join(textwrap.fill(line, 60) for line in text.splitlines())
        fig.text(0.5, 0.5, wrapped, ha="center", va="center", fontsize=9)
        _save(fig, pdf, png)


def _save(fig: Figure, pdf: str | Path, png: str | Path) -> None:
    fig.savefig(pdf, metadata={"CreationDate": None})
    fig.savefig(png, dpi=200)
    plt.close(fig)
