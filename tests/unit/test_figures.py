"""What the figures draw, that it can be read, and that equal input gives equal files."""

from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from replay import figures
from replay.analysis import analyze
from replay.beyond import beyond
from replay.controls import controls
from replay.protocol import CATALOGUE, PASSES

SEVEN = [
    "Main pooled (t=.7, K=4)",
    "Greedy continuations (t=0, K=1)",
    "Phi-4-mini-instruct, temperature 0.7, K=4",
    "an_unusually_long_configuration_name",
    "K=8",
    "K=16 (10 problems)",
    "Batch-invariant kernels",
]


def record(i, a1, a2, ar, delta2=None, delta_refeed=None):
    deltas = {"exact2": delta2, "refeed": delta_refeed}
    return {
        "problem_id": i // 3,
        "rollout": 0,
        "abs_pos": i,
        "margin": 0.5,
        "A_exact1": a1,
        "A_exact2": a2,
        "A_refeed": ar,
        **{f"greedy_first_logprob_delta_{name}": value for name, value in deltas.items()},
    }


RECORDS = [
    record(0, 0.5, 0.5, 0.5, 0.0, 1e-4),
    record(1, 0.5, 0.5, 0.0, 0.0, 1e-2),
    record(2, 0.5, 0.5, 0.0, 0.0, 0.0),
    record(3, -1.0, -1.0, 0.5, 1e-5, 2e-2),
    record(4, 0.0, 0.0, 0.0, 0.0, 1e-3),
]


def row(label, pivots, **fields):
    passes = [name for name in CATALOGUE if pivots and f"A_{name}" in pivots[0]] or list(PASSES)
    stored = {"config": {"k": 2, "passes": passes}, "per_problem": [], "pivots": pivots}
    analysis = analyze(pivots, 2) | beyond(pivots, 2) | controls(stored)
    return {"name": label, "label": label, "model": "m", "analysis": analysis} | fields


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were about to be saved, laid out."""
    saved = []

    def keep(fig, pdf, png):
        fig.draw_without_rendering()
        saved.append(fig)

    monkeypatch.setattr(figures, "_save", keep)
    yield saved
    plt.close("all")


def cells(ax):
    return {text.get_position(): text.get_text() for text in ax.texts}


def assert_readable(fig):
    texts = [text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= 7
    assert fig.get_figwidth() in (3.3, 7)


def figure1(pivots, k, title="demo"):
    figures.figure1(figures.joint_counts(pivots, k), k, title, None, None)


def figure2(rows):
    figures.figure2(figures.sign_rates(rows), None, None)


def figure3(series):
    figures.figure3(figures.logprob_deltas(series), None, None)


def figure4(rows):
    figures.figure4(figures.control_effects(rows), None, None)


def figure5(rows):
    figures.figure5(figures.selection_overlaps(rows), None, None)


def test_figure1_counts_and_outlines(drawn):
    figure1(RECORDS, 2)
    (fig,) = drawn
    refeed, replica = fig.axes[:2]
    # Positions are in units of 1/K from -1: 0.5 is 3. The all-zero pivot is not eligible.
    assert cells(refeed) == {(3, 3): "1", (3, 2): "2", (0, 3): "1"}
    assert cells(replica) == {(3, 3): "3", (0, 0): "1"}
    assert "3 of 4 (75.0%)" in refeed.get_title()
    assert "0 of 4 (0.0%)" in replica.get_title()
    for ax, occupied in ((refeed, 2), (replica, 0)):
        _, empty, full = ax.collections
        assert len(full.get_paths()) == occupied
        # Of 25 cells 2x2 + 2x2 + 1 agree in sign.
        assert len(empty.get_paths()) == 16 - occupied
        assert to_hex(full.get_edgecolor()[0] if occupied else figures.RED) == figures.RED
    assert_readable(fig)


@pytest.mark.parametrize(
    ("k", "copies", "fit"),
    [
        (1, 1000, True),
        (4, 100, True),
        (8, 10, True),
        (8, 100, False),
        (16, 1, True),
        (16, 100, False),
    ],
)
def test_figure1_on_any_grid(drawn, k, copies, fit):
    pairs = [(a, b) for a in range(-k, k + 1) for b in (-a, a, 0) if a] * copies
    dense = [record(i, a / k, b / k, b / k) for i, (a, b) in enumerate(pairs)]
    figure1(dense, k, "a title that is long enough to be wrapped " * 4)
    (fig,) = drawn
    assert_readable(fig)
    for ax in fig.axes[:2]:
        # All counts or, where they would not fit, none.
        assert sum(int(count) for count in cells(ax).values()) == (len(dense) if fit else 0)
        assert "0" in [label.get_text() for label in ax.get_xticklabels()]
        side = ax.get_window_extent().width / (2 * k + 1)
        assert all(text.get_window_extent().width < side for text in ax.texts)


def test_figure1_leaves_out_counts_that_do_not_fit(drawn):
    figure1([record(0, 1, 1, 1)], 64)
    assert not drawn[0].axes[0].texts


def test_figure2_bars_and_labels(drawn):
    rows = [row("some", RECORDS), row("none", [])]
    figure2(rows)
    (fig,) = drawn
    (ax,) = fig.axes
    assert [bar.get_height() for bar in ax.patches] == [75, 0, 0, 0]
    assert [text.get_text() for text in ax.texts] == ["75.0", "—", "0.0", "—"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["some\nn = 4", "none\nn = 0"]
    refeed, floor = ax.containers
    assert refeed[0].get_hatch() and not floor[0].get_hatch()
    assert_readable(fig)


def test_figure2_labels_of_seven_configurations_do_not_overlap(drawn):
    figure2([row(label, RECORDS) for label in SEVEN])
    (fig,) = drawn
    assert_readable(fig)
    (ax,) = fig.axes
    for texts in (ax.get_xticklabels(), ax.texts):
        boxes = [text.get_window_extent() for text in texts]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_figure3_shows_the_mass_at_zero_and_the_distribution(drawn):
    figure3({"stock": RECORDS, "pinned": RECORDS[:3]})
    (fig,) = drawn
    zero, log = fig.axes
    assert [line.get_ydata()[0] for line in zero.lines] == pytest.approx([80, 20, 100, 100 / 3])
    refeed = log.lines[2]  # after the replica's curve and its legend entry
    assert list(refeed.get_xdata()[1:-1]) == [1e-4, 1e-3, 1e-2, 2e-2]
    assert list(refeed.get_ydata()) == pytest.approx([20, 40, 60, 80, 100, 100])
    low, high = log.get_xlim()
    assert low < 1e-5 and high > 2e-2
    texts = [text.get_text() for text in fig.legends[0].get_texts()]
    assert texts[1] == "re-feed, stock:\nn = 5, 20.0% exactly 0"
    assert len(texts) == 4
    assert_readable(fig)


def test_figure3_thins_long_curves_without_losing_their_ends(drawn):
    many = [record(i, 0, 0, 0, 0.0, 1e-6 * (i + 1)) for i in range(5000)]
    figure3({"stock": many})
    curve = drawn[0].axes[1].lines[2]
    assert len(curve.get_xdata()) == figures.MAX_STEPS + 2
    assert curve.get_xdata()[-2] == 1e-6 * 5000 and curve.get_ydata()[-2] == 100
    assert all(one <= other for one, other in pairwise(curve.get_ydata()))
    assert np.abs(curve.get_ydata()[1:-1] / 100 - curve.get_xdata()[1:-1] * 200).max() < 1e-9


@pytest.mark.parametrize("largest", [6e-2, 0.5, 9.0])
def test_figure3_labels_of_one_decade_or_more_do_not_overlap(drawn, largest):
    figure3({"few": [record(0, 0, 0, 0, 0.0, 2e-2), record(1, 0, 0, 0, 0.0, largest)]})
    log = drawn[0].axes[1]
    labels = [label for label in log.get_xticklabels(which="both") if label.get_text()]
    low, high = log.get_xlim()
    boxes = [x.get_window_extent() for x in labels if low <= x.get_position()[0] <= high]
    assert len(boxes) >= 2
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_figure3_with_all_differences_zero(drawn):
    figure3({"pinned": [record(0, 0, 0, 0, 0.0, 0.0)]})
    assert [line.get_ydata()[0] for line in drawn[0].axes[0].lines] == [100, 100]


def test_figure5_draws_estimates_and_intervals(drawn):
    curve = [
        {
            "threshold": t,
            "refeed": {"estimate": y, "ci95": [y - 0.2, y + 0.2]},
            "replica": {"estimate": 1.0, "ci95": None},
        }
        for t, y in ((0.5, 0.4), (1.0, 0.7))
    ]
    analysis = analyze(RECORDS, 2) | {"jaccard_curve": curve}
    figure5([{"name": "some", "label": "some", "analysis": analysis}])
    (fig,) = drawn
    (ax,) = fig.axes
    refeed, *refeed_points = ax.lines[:3]
    assert list(refeed.get_ydata()) == [0.4, 0.7]
    assert list(refeed.get_xdata()) == pytest.approx([0.52, 1.02])
    assert [line.get_markerfacecolor() for line in refeed_points] == [figures.RED] * 2
    assert [line.get_markerfacecolor() for line in ax.lines[4:]] == ["white"] * 2
    bars = [collection.get_segments()[0][:, 1].tolist() for collection in ax.collections]
    assert bars == [pytest.approx([0.2, 0.6]), pytest.approx([0.5, 0.9])]
    assert ax.get_title() == "some\nn = 4"
    assert_readable(fig)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_figure5_has_a_panel_a_configuration(drawn, count):
    figure5([row(label, RECORDS) for label in SEVEN[:count]])
    (fig,) = drawn
    assert_readable(fig)
    assert fig.get_figwidth() == 3.3
    panels = [ax for ax in fig.axes if ax.axison]
    assert len(panels) == count
    titles = [ax.title.get_window_extent() for ax in panels]
    assert not any(one.overlaps(other) for one, other in combinations(titles, 2))
    for ax in panels[-2:]:
        assert [label.get_text() for label in ax.get_xticklabels() if label.get_visible()]


def test_figure5_says_where_nothing_is_selected(drawn):
    figure5([row("none", [])])
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["nothing is selected"]


def with_controls(*states):
    """RECORDS with a pass on prefilled state and a re-feed replica."""
    return [
        r | {"A_prefill_warm": state, "A_refeed2": r["A_refeed"]}
        for r, state in zip(RECORDS, states, strict=True)
    ]


def test_figure4_draws_each_comparison_with_its_interval(drawn):
    figure4([row("some", with_controls(0.5, 0.0, 0.5, 0.5, 0.0)), row("three", RECORDS)])
    (fig,) = drawn
    some, three = fig.axes
    labels = ["re-feed", "recomputed state", "batch dynamics", "floor", "re-feed replica"]
    assert [label.get_text() for label in some.get_yticklabels()] == labels
    assert [line.get_xdata()[0] for line in some.lines] == [75, 50, 25, 0, 0]
    colors = [figures.RED] * 3 + [figures.GREY] * 2
    assert [line.get_color() for line in some.lines] == colors
    # No problem differs at a floor: its interval is undefined and its marker hollow.
    hollow = [line.get_markerfacecolor() == "white" for line in some.lines]
    assert hollow[-2:] == [True, True] and len(some.collections) == hollow.count(False)
    assert [text.get_text() for text in three.texts] == ["not run"] * 3
    assert some.get_ylim() == (4.5, -0.5)  # the first comparison is on top
    assert_readable(fig)


def test_figure4_shows_no_rate_where_no_pivot_is_eligible(drawn):
    figure4([row("none", RECORDS[4:])])
    (ax,) = drawn[0].axes
    assert [text.get_text() for text in ax.texts] == ["\N{EM DASH}"] * 2 and not ax.lines
    assert_readable(drawn[0])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figure1([], 2), "No eligible pivots"),
        (lambda: figure1(RECORDS[4:], 2), "none has a nonzero"),
        (lambda: figure2([]), "No configurations"),
        (lambda: figure4([]), "No configurations"),
        (lambda: figure5([]), "No configurations"),
        (lambda: figure3({"stock": []}), "No pivot has a greedy probe"),
        (lambda: figure3({"a": [record(0, 0, 0, 0)]}), "No pivot has a greedy"),
    ],
)
def test_nothing_to_draw_is_said(drawn, draw, message):
    draw()
    (fig,) = drawn
    assert not fig.axes and message in fig.texts[0].get_text().replace("\n", " ")


def test_draw_all_writes_equal_files_for_equal_input(tmp_path):
    content = {"config": {"k": 2}, "pivots": RECORDS}
    rows = [
        row(numerics, RECORDS, numerics=numerics, records=content)
        for numerics in ("stock", "batch-invariant")
    ]
    files = []
    for attempt in ("one", "two"):
        (tmp_path / attempt).mkdir()
        paths = [
            [tmp_path / attempt / f"figure{n}.{suffix}" for n in (1, 2, 3, 4, 5)]
            for suffix in ("pdf", "png", "csv")
        ]
        figures.draw_all(rows, *paths)
        files.append([path.read_bytes() for kind in paths for path in kind])
    assert files[0] == files[1]
    assert all(data.startswith(b"%PDF") and b"CreationDate" not in data for data in files[0][:5])
    assert all(b"/Subtype /Image" not in data for data in files[0][:5])
    # 7 inches at 200 dpi; the PNG header holds the width in bytes 16 to 19.
    assert int.from_bytes(files[0][5][16:20], "big") == 1400


def test_figure_3_leaves_out_rows_that_say_so(tmp_path, monkeypatch):
    pooled = {}

    def keep(deltas, _pdf, _png):
        pooled.update(deltas.groupby("series")["n"].max())

    monkeypatch.setattr(figures, "figure3", keep)
    content = {"config": {"k": 2}, "pivots": RECORDS}
    rows = [
        row("one", RECORDS, numerics="stock", records=content),
        row("two", RECORDS, numerics="stock", records=content, in_figure3=False),
    ]
    files = [[tmp_path / f"{n}.{suffix}" for n in (1, 2, 3, 4, 5)]
             for suffix in ("pdf", "png", "csv")]  # fmt: skip
    figures.draw_all(rows, *files)
    assert pooled == {"stock numerics": len(RECORDS)}


def test_csvs_hold_what_is_drawn(tmp_path):
    content = {"config": {"k": 2}, "pivots": RECORDS}
    kinds = [[tmp_path / f"{n}.{kind}" for n in (1, 2, 3, 4, 5)] for kind in ("pdf", "png", "csv")]
    figures.draw_all([row("some", RECORDS, numerics="stock", records=content)], *kinds)
    joint, rates, deltas, effects, overlaps = map(pd.read_csv, kinds[2])
    changed = joint[joint["sign_differs"]].groupby("comparison")["pivots"].sum()
    assert changed.to_dict() == {"refeed": 3}
    assert rates[["comparison", "n", "sign_changes", "percent"]].values.tolist() == [
        ["refeed", 4, 3, 75.0], ["floor", 4, 0, 0.0],
    ]  # fmt: skip
    refeed = deltas[deltas["comparison"] == "refeed"]
    assert refeed["delta_nats"].tolist() == [0, 1e-4, 1e-3, 1e-2, 2e-2]
    assert refeed["cumulative_pivots"].tolist() == [1, 2, 3, 4, 5]
    assert effects[["comparison", "n", "sign_changes", "percent"]].values.tolist() == [
        ["refeed", 4, 3, 75.0], ["floor", 4, 0, 0.0],
    ]  # fmt: skip
    at_half = overlaps[(overlaps["comparison"] == "refeed") & (overlaps["threshold"] == 0.5)]
    assert at_half["jaccard"].item() == pytest.approx(2 / 4)
