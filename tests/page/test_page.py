"""The page in a real browser: pointer, keyboard, widths, and without JavaScript."""

import json
import urllib.request

import pandas as pd
import pytest
from chromium import chromium, executable

from replay import registration
from replay.analysis import analyze
from replay.beyond import beyond
from replay.browser import Texts, build
from replay.controls import controls
from replay.figures import draw_all
from replay.protocol import PASSES
from replay.report import build_report
from replay.rule_graph import svg
from replay.tables import table1

pytestmark = pytest.mark.page

WORDS = ["So", " the", " answer", " is", " 4", " 5", " then", " <b>", "", "\n"]
TRUNK = [0, 1, 2, 3, 4]
COHORT = {
    "name": "first", "dataset": "sums", "screened": False, "window": [0, 1], "requested": 2,
    "found": 2, "scanned": 2, "note": "",
    "problems": [{"index": i, "accuracy": 0.5, "admitted": True} for i in range(2)],
}  # fmt: skip


def decode(ids):
    return "".join(WORDS[i] for i in ids)


def record(problem, position, refeed):
    estimates = dict(zip((f"A_{p}" for p in PASSES), (1.0, 1.0, refeed), strict=True))
    return {
        "problem_id": problem, "rollout": 0, "abs_pos": position, "gen_index": position - 10,
        "margin": position / 100, "rollout_correct": 1, "sampled_token": 4, "alternative_token": 5,
        "cache_ok_exact1": True, "cache_ok_exact2": True, "borrowed_blocks": 2,
        "cached_tokens_refeed": [0, 16], "greedy_first_logprob_delta_exact2": 0.0,
        "greedy_first_logprob_delta_refeed": 0.25,
    } | estimates  # fmt: skip


def completions(records, name):
    """The same words everywhere, but in the alternative arm of re-feed."""
    return [
        {
            "problem_id": r["problem_id"], "rollout": 0, "abs_pos": r["abs_pos"], "arm": arm,
            "k": k, "finish_reason": "stop",
            "token_ids": [6, 7, 5] if (name, arm) == ("refeed", "alt") else [6, 1, 1],
        }
        for r in records for arm in ("actual", "alt") for k in (0, "greedy")
    ]  # fmt: skip


def grades(records, name):
    graded = {"outcome": "right", "answers": {"strict": 4}}
    return [row | graded for row in completions(records, name) if row["k"] == 0]


def configuration(name, records):
    config = {"k": 1, "sections": {"grading": {"grader": "strict"}}}
    stored = {"config": config, "per_problem": [], "pivots": records}
    texts = Texts(
        stored,
        {i: {"question": f"What is 2 + {i}? <i>", "answer": 4} for i in range(2)},
        [{"problem_id": i, "rollout": 0, "token_ids": TRUNK} for i in range(2)],
        {p: completions(records, p) for p in PASSES},
        {p: grades(records, p) for p in PASSES},
        decode,
    )
    return {
        "name": name, "label": f"Label of {name}", "model": "m", "numerics": "stock",
        "records": stored, "analysis": analyze(records, 1) | beyond(records, 1) | controls(stored),
        "settings": {"continuations.k": len(records)}, "cohorts": [COHORT], "note": "",
        "browser": build(stored, texts, 10**6),
    }  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of two configurations: `one` with three pivots, `other` with one."""
    folder = tmp_path_factory.mktemp("page")
    cases = [
        configuration("one", [record(0, 11, 1.0), record(0, 13, 0.0), record(1, 12, -1.0)]),
        configuration("other", [record(1, 14, 1.0)]),
    ]
    kinds = [
        [folder / f"figure{n}.{kind}" for n in (1, 2, 3, 4, 5)] for kind in ("pdf", "png", "csv")
    ]
    draw_all(cases, *kinds)
    context = {
        "run": "test", "title": "A page", "question": "Does it matter?", "configurations": cases,
        "engine": {"vllm": "0"}, "needed": "Nothing.", "generated": "0123abc",
        "counts": dict.fromkeys(("trunk_rollouts", "pivots", "requests"), 4)
        | {"trunk_accuracy": 0.5},
        "table": table1(cases), "figures": dict(zip((1, 2, 3, 4, 5), kinds[1], strict=True)),
        "registration": {
            "registration": registration.load(), "lock": None,
            "configurations": {
                case["name"]: {"state": "deviates", "deviations": ["k: 1"], "verdict": "material"}
                for case in cases
            },
        },
        "rule_graph": svg(["records", "table"], [("records", "table")]),
        "origins": [
            {
                "name": case["name"], "label": case["label"], "group": group, "passes": [],
                "records": [f"../records/{case['name']}.json"], "trunks": [],
            }
            for case in cases for group in ("refeed", "exact2", "all")
        ],
    }  # fmt: skip
    path = folder / "index.html"
    path.write_text(build_report(context), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (command := executable()):
        pytest.skip("no Chromium on PATH; on Debian: apt-get install chromium")
    with chromium(command, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser, page):
    browser.open(page)
    yield browser
    assert browser.problems == [] and browser.requests == [page.as_uri()]


def text(tab, selector):
    return tab.js(f"document.querySelector({json.dumps(selector)}).innerText")


def shown(tab, selector):
    """Texts of the elements that can be seen."""
    return tab.js(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".filter(e => e.checkVisibility()).map(e => e.innerText)"
    )


def options(tab, name):
    return tab.js(f"[...document.querySelectorAll('#{name} option')].map(o => o.textContent)")


def choose(tab, name, value):
    """Choose an option by keyboard: its first letters."""
    tab.js(f"document.getElementById('{name}').focus()")
    for letter in value:
        tab.call("Input.dispatchKeyEvent", type="char", text=letter)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [380, 1280])
def test_nothing_is_wider_than_the_window(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    browser.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.js("innerWidth") == width
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.problems == []


@pytest.mark.parametrize(
    ("section", "caption", "width"),
    [("controls", "Table 2", 1100), ("bits", "What is equal to the last bit", 960)],
)
def test_a_wide_table_fits_its_window(browser, page, section, caption, width):
    browser.open(page, width=width)
    table = f"document.querySelector('#{section} .scroll')"
    assert browser.js(f"{table}.ariaLabel").startswith(caption)
    assert browser.js(f"{table}.scrollWidth") <= browser.js(f"{table}.clientWidth")


def test_filter_narrows_tables_cohorts_and_browser(tab):
    assert text(tab, "#filter-status") == "2 of 2 configurations shown."
    rows = "#answer tbody th"
    assert shown(tab, rows) == ["Label of one", "Label of other"]
    tab.click("#filter summary")
    tab.click("#filter input[name=one]")
    assert text(tab, "#filter-status") == "1 of 2 configurations shown: Label of other."
    assert shown(tab, rows) == ["Label of other"]
    assert options(tab, "configuration") == ["Label of other"]
    assert shown(tab, "#settings th[data-of]") == ["other"]
    assert shown(tab, "#beyond th[data-of]") == ["Label of other"]
    assert "position 14" in text(tab, "#pivot-title")
    tab.click("#filter input[name=other]")
    assert shown(tab, "#cohorts h3") == [] and text(tab, "#browse-status") == "No pivot fits."
    tab.click("#all")
    assert len(shown(tab, rows)) == 2 and shown(tab, "#cohorts h3") == ["first"]


def test_the_first_pivot_shown_is_one_with_a_sign_change(tab):
    assert text(tab, "#browse-status") == (
        "Pivot 2 of 3 that fit: problem 0, rollout 0, position 13; sign changed under re-feed."
    )


def test_a_chosen_pivot_has_its_question_transcript_and_passes(tab):
    assert text(tab, "#pivot .said") == "What is 2 + 0? <i>"
    assert text(tab, "#transcript") == "So the answer is 4"
    assert shown(tab, "#transcript button") == [" the", " is"]
    assert shown(tab, "#transcript [aria-current=true]") == [" is"]
    table = shown(tab, "#pivot tbody tr")
    assert [row.split("\t") for row in table] == [
        ["exact 1", "+1", "yes", "—", "—"],
        ["exact 2", "+1", "yes", "—", "—"],
        ["re-feed", "0", "recomputed", "0 to 16", "—"],
    ]
    actual, alternative = shown(tab, ".arm")
    assert (
        actual.startswith("Actual arm: token ␣4")
        and "re-feed: right, answer 4; as exact 1" in actual
    )
    assert alternative.count("re-feed: right, answer 4; differs from token 1") == 1
    first = "document.querySelectorAll('.arm')[1].querySelector('.passes')"
    said = tab.js(f"[...{first}.querySelectorAll('.said')].map(e => e.textContent)")
    assert said == [" then the the", " then the the", " then <b> 5"]
    assert tab.js(f"{first}.querySelector('mark').textContent") == " <b> 5"


def test_selects_and_buttons_walk_the_pivots(tab):
    assert options(tab, "problem") == ["0", "1"]
    choose(tab, "problem", "1")
    assert "Problem 1, rollout 0, position 12" in text(tab, "#pivot-title")
    assert tab.js("document.getElementById('next').disabled")
    tab.click("#previous")
    tab.click("#previous")
    assert "Problem 0, rollout 0, position 11" in text(tab, "#pivot-title")
    tab.click("#transcript button:nth-of-type(2)")
    assert "position 13" in text(tab, "#pivot-title")
    assert tab.js("document.activeElement.ariaCurrent") == "true"


@pytest.mark.parametrize(
    ("name", "positions"), [("changed", [13, 12]), ("reversed", [12]), ("eligible", [11, 13, 12])]
)
def test_pivots_can_be_filtered(tab, name, positions):
    tab.click(f"#browse input[name={name}]")
    assert f"of {len(positions)} that fit" in text(tab, "#browse-status")
    assert tab.js("document.getElementById('position').value") == str(
        13 if 13 in positions else positions[0]
    )


def test_margin_filter(tab):
    tab.click("#browse input[name=margin]")
    tab.call("Input.insertText", text="0.12")
    assert text(tab, "#browse-status").startswith("Pivot 1 of 1 that fit: problem 0")


def test_everything_can_be_reached_and_worked_by_keyboard(tab):
    tab.press("Tab")
    assert tab.js("document.activeElement.className") == "skip"
    assert tab.js("document.activeElement.getBoundingClientRect().x") >= 0
    reached = set()
    while (here := tab.js("document.activeElement.tagName")) != "BODY":
        assert tab.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
        reached.add(tab.js("document.activeElement.id"))
        if here == "SUMMARY":
            tab.press("Enter")  # opens it, so that what is inside comes next
        tab.press("Tab")
    wanted = {"configuration", "problem", "rollout", "position", "previous", "next", "all"}
    assert wanted <= reached
    tab.js("document.querySelector('#filter input').focus()")
    tab.press(" ")
    assert text(tab, "#filter-status").startswith("1 of 2")


def test_every_control_has_a_name_and_every_heading_its_level(tab):
    nameless = (
        "[...document.querySelectorAll('input, select, button, [role=region], [role=group]')]"
        ".filter(e => !(e.labels?.[0]?.textContent || e.ariaLabel || e.textContent).trim()).length"
    )
    assert tab.js(nameless) == 0
    levels = tab.js(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert tab.js("document.querySelectorAll('main, header, nav').length") == 3


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_is_at_least_that_of_wcag_aa(browser, page, dark):
    browser.open(page, dark=dark)
    assert browser.js(CONTRASTS) == []


def test_figure_data_can_be_downloaded(tab):
    links = tab.js("[...document.querySelectorAll('a[download]')].map(a => [a.download, a.href])")
    assert [name for name, _ in links] == [f"figure{n}.csv" for n in (1, 2, 3, 4, 5)]
    assert all(len(pd.read_csv(urllib.request.urlopen(url))) for _, url in links)


def test_without_javascript_all_is_shown_and_no_control(browser, page):
    browser.open(page, scripts=False)
    assert shown(browser, "#answer tbody th") == ["Label of one", "Label of other"]
    assert shown(browser, "#browse, #filter, #pivot") == []
    assert "takes JavaScript" in text(browser, "#browser noscript")


def test_a_printed_page_has_all_tables_and_figures_and_no_control(tab):
    tab.click("#filter summary")
    tab.click("#filter input[name=one]")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert len(shown(tab, "#answer tbody th")) == 2
    tables = "document.querySelectorAll('main table, figure').length"
    assert len(shown(tab, "main > section:not(#browser) table, figure")) == tab.js(
        "document.querySelectorAll('main > section:not(#browser) table, figure').length"
    ) and tab.js(tables)
    assert shown(tab, "input, select, button, nav, #filter") == []
    tab.call("Emulation.setEmulatedMedia", media="")
    assert tab.pdf().startswith(b"%PDF")


# Texts that stand out less from their background than 4.5 : 1.
CONTRASTS = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => parts(color).slice(0, 3)
    .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    const color = getComputedStyle(e).backgroundColor;
    return (parts(color)[3] ?? 1) > 0 ? color : behind(e.parentElement);
  };
  const speaks = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll("body *")].filter((e) =>
    e.checkVisibility() && !e.disabled && speaks(e)
  ).map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    return [e.tagName, e.className, (a + 0.05) / (b + 0.05)];
  }).filter(([, , ratio]) => ratio < 4.5);
})()"""
