"""The page says what the numbers say, to the letter, and stands alone as one file."""

import base64
import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from replay import registration
from replay.analysis import analyze
from replay.beyond import beyond
from replay.config import load_schema, load_study, read_config
from replay.controls import controls
from replay.page import flatten, gather
from replay.protocol import PASSES
from replay.report import ENGINE_FACTS, _meanings, answer, build_report, reading, verdict
from replay.rule_graph import svg
from replay.storage import write_json, write_text
from replay.tables import table1

VOID = {"meta", "img", "br", "input"}
# A PNG header that says 300 pixels; the page never decodes the image.
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (300).to_bytes(4, "big") + b"\0" * 8


def records(*problems):
    """One problem per argument: a string with a letter a pivot, each with K = 1.

    s: no sign change, r: re-feed changes it, f: the replica changes it, 0: not eligible.
    """
    estimates = {"s": (1, 1, 1), "r": (1, 1, 0), "f": (1, 0, 1), "0": (0, 0, 0)}
    return [
        {"problem_id": problem, "rollout": 0, "abs_pos": position, "margin": 0.5}
        | dict(zip(("A_exact1", "A_exact2", "A_refeed"), estimates[letter], strict=True))
        for problem, letters in enumerate(problems)
        for position, letter in enumerate(letters)
    ]


def analysed(rows):
    stored = {"config": {"k": 1}, "per_problem": [], "pivots": rows}
    return analyze(rows, k=1) | beyond(rows, k=1) | controls(stored)


def selection(total=0, **entries):
    """A result of `browser.build`."""
    return {
        "passes": list(PASSES),
        "k": 1,
        "total": total,
        "problems": {},
        "rollouts": {},
        "pivots": [],
    } | entries


def configuration(label, *problems, **fields):
    return {
        "name": label.lower().replace(" ", "_"),
        "label": label,
        "model": "Some-Model",
        "numerics": "stock",
        "analysis": analysed(records(*problems)),
        "settings": {"continuations.k": 1},
        "cohorts": [],
        "note": "",
        "browser": selection(),
    } | fields


ABOVE = configuration("Above", "rrs", "rss", "rrrs", "rs", "rrs", "rss")
BELOW = configuration("Below", "ffs", "fss", "fffs", "fs", "ffs", "fss")
LEVEL = configuration("Level", "rfs", "rs", "fs", "rss", "fss", "ss")
FEW = configuration("Few", "rrr", "rrs", "rrs")
IDENTICAL = configuration("Identical", "sss", "s0")
NOTHING = configuration("Nothing")
NO_ELIGIBLE = configuration("No eligible", "000")
ALL = [ABOVE, BELOW, LEVEL, FEW, IDENTICAL, NOTHING]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (ABOVE, "above"),
        (BELOW, "below"),
        (LEVEL, "level"),
        (FEW, "too few"),
        (IDENTICAL, "identical"),
        (NOTHING, "nothing"),
        (configuration("same excess everywhere", *["rs"] * 6), "above"),
        (configuration("same excess, five problems", *["rs"] * 5), "too few"),
        (configuration("both flip alike", *["rf"] * 6), "level"),
    ],
)
def test_verdict(case, expected):
    assert verdict(case["analysis"]) == expected


def test_passes_that_differ_in_bits_alone_are_not_identical():
    rows = [
        r | {f"greedy_first_logprob_delta_{name}": 1e-7 for name in ("exact2", "refeed")}
        for r in records(*["s"] * 6)
    ]
    assert verdict(analyze(rows, k=1)) == "level"


def test_readings_carry_their_counts():
    assert reading(FEW) == (
        "in “Few” re-feed changed the sign at 77.8% and the replica at 0.0% of 9 eligible pivots"
        " on 3 problems: too few problems to speak of others"
    )
    assert "(5 pivots, 4 eligible)" in reading(IDENTICAL)
    assert reading(NOTHING) == (
        "in “Nothing” there is nothing to compare: 0 pivots, no nonzero estimate"
    )
    assert reading(configuration("One", "r")).endswith(
        "1 eligible pivot on 1 problem: too few problems to speak of others"
    )
    assert reading(ABOVE).endswith(": more than chance")
    assert "95% interval +" in reading(ABOVE) and "not more than chance" in reading(LEVEL)


def test_answer_with_an_effect():
    first, second = answer([ABOVE, IDENTICAL])
    assert first == (
        "Yes, in 1 of 2 configurations, “Above”: re-feeding changed the sign of the credit"
        " estimate at 55.6% of eligible pivots, 55.6 percentage points above the replica floor of"
        " 0.0% (n = 18, problem-clustered t 7.34)."
    )
    assert second.startswith("In “Identical” all passes agreed")


def test_answer_over_several_configurations_gives_ranges_and_selection():
    other = configuration("Other", *["rrrs"] * 5, "rsss")
    first, second = answer([ABOVE, other])
    assert "“Above” and “Other”: " in first and "at 55.6 to 66.7% of" in first
    assert second.startswith("The critical tokens") and "Jaccard 0.33 to 0.44" in second


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([FEW, IDENTICAL], "On the problems of this run, yes: in 1 of 2 configurations"),
        ([NOTHING], "This run cannot tell"),
        ([], "This run cannot tell"),
        ([IDENTICAL], "No, re-feeding changed nothing"),
        ([LEVEL, FEW], "On the problems of this run, yes: in 1 of 2 configurations"),
        ([LEVEL], "No configuration shows"),
        ([BELOW], "No configuration shows"),
    ],
)
def test_answer_without_an_effect(cases, expected):
    sentences = answer(cases)
    assert len(sentences) == 2 and sentences[0].startswith(expected)
    assert all(sentence.endswith(".") for sentence in sentences)


def graded(label, rates, *problems):
    """A configuration with these shares of graded outcomes in exact 1."""
    analysis = analysed(records(*problems)) | {"rates": {"exact1": rates}}
    return configuration(label, analysis=analysis)


READ = {"right": 0.2, "wrong": 0.3, "unparsed": 0.25, "truncated": 0.25}
UNREAD = {"right": 0.3, "wrong": 0.07, "unparsed": 0.6, "truncated": 0.03}
CUT = {"right": 0.0, "wrong": 0.2, "unparsed": 0.0, "truncated": 0.8}


def test_the_answer_says_where_most_continuations_were_not_graded_right_or_wrong():
    problems = ("rrs", "rss", "rrrs", "rs", "rrs", "rss")
    cases = [graded("Unread", UNREAD, *problems), graded("Read", READ), graded("Cut", CUT, "ss")]
    first, note, _ = answer(cases)
    assert first.startswith("Yes, in 1 of 3 configurations, “Unread”")
    assert "63.0% in “Unread” (60.0% unparsed, 3.0% truncated)" in note
    assert "80.0% in “Cut” (0.0% unparsed, 80.0% truncated)" in note and "“Read”" not in note
    assert "their reward is 0 whatever they say" in note
    keys = ("prompt.instruction", "grading.grader", "continuations.max_tokens")
    assert all(key in note for key in keys)


def test_half_is_not_most_and_what_is_not_recorded_is_not_said():
    assert len(answer([graded("Read", READ), graded("Unrecorded", None)])) == 2


DEVIATES = {
    "state": "deviates",
    "deviations": ["continuations.k: registered 4, here 1"],
    "verdict": "material: 55.6% is above 5% (the replica floor is 0.0%)",
}
REGISTRATION = {
    "registration": registration.load(),
    "lock": None,
    "configurations": defaultdict(lambda: DEVIATES),
}


@pytest.fixture
def context(tmp_path):
    png = tmp_path / "figure.png"
    png.write_bytes(PNG)
    png.with_suffix(".csv").write_text("estimate,pivots\n0.5,3\n")
    cohort = {
        "name": "screened",
        "dataset": "gsm8k",
        "screened": True,
        "window": [20, 29],
        "requested": 2,
        "found": 1,
        "scanned": 10,
        "problems": [
            {"index": 20, "accuracy": 1.0, "admitted": False},
            {"index": 21, "accuracy": None, "admitted": True},
        ],
        "note": "scan limit reached: 1 of 2",
    }
    cases = [case | {"cohorts": [cohort]} for case in ALL]
    cases[1] = cases[1] | {"settings": {"continuations.k": 8, "prompt.system": None}}
    return {
        "run": "demo",
        "title": "A <title>",
        "question": "Does it matter?",
        "configurations": cases,
        "engine": {"vllm": "0.22.1", "threads": None},
        "counts": {"trunk_rollouts": 48, "trunk_accuracy": None, "pivots": 70, "requests": 1234},
        "table": table1(cases),
        "figures": {n: png for n in (1, 2, 3, 4, 5)},
        "needed": "Nothing is observed over K.",
        "generated": "0123abc",
        "registration": REGISTRATION,
        "rule_graph": svg(["records", "analyze"], [("records", "analyze")]),
        "origins": [
            {
                "name": "above", "label": "Above", "group": group, "trunks": [],
                "records": ["../records/above.json"],
                "passes": [f"../passes/above/0-of-1/{name}.jsonl" for name in ("exact1", "refeed")],
            }
            for group in ("refeed", "exact2", "all")
        ],
    }  # fmt: skip


class Page(HTMLParser):
    """Text, headings, images and links of a page; fails on tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.headings, self.images, self.tables = [], [], [], [], 0
        self.links = []
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        self.tables += tag == "table"
        if tag == "img":
            self.images.append(attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data.strip())
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def test_page_is_well_formed_and_in_order(context):
    page = Page(build_report(context))
    assert page.headings == [
        "A <title>",
        "What was asked",
        "Answer",
        "Registration",
        "Figures",
        "Why re-feeding changes estimates",
        "Words used on this page",
        "Pivot browser",
        "Selection of critical tokens",
        "Other conditions",
        "Bit-level account",
        "Beyond the paper's statistics",
        "Cache hits and flags",
        "Cohorts and screening",
        "Settings",
        "Engine",
        "Where the numbers come from",
    ]


def test_page_is_self_contained(context):
    html = build_report(context)
    page = Page(html)
    assert len(page.images) == 5
    kinds = ("data:image/png;base64,", "data:text/csv;base64,", "#", "../")
    assert all(link.startswith(kinds) for link in page.links)
    assert all(len(image["alt"]) > 80 and image["width"] == "200" for image in page.images)
    assert "http" not in html and "url(" not in html.replace("url(#arrow)", "")


def test_the_note_on_what_was_not_graded_stands_with_its_configuration(context):
    case = graded("Unread", UNREAD, "rs")
    html = build_report(context | {"configurations": [case, LEVEL], "table": table1([case, LEVEL])})
    note = "63.0% in “Unread” (60.0% unparsed"
    assert html.count(note) == 2 and note in html[: html.index("The words are explained below")]
    listed = re.findall('<li data-of="unread">(.*?)</li>', html)
    assert sum(note in text for text in listed) == 1
    assert not any("graded neither" in text for text in re.findall('of="level">(.*?)</li>', html))


def test_a_screen_tells_how_the_rollouts_were_graded(context):
    cohort = context["configurations"][0]["cohorts"][0]
    before = " ".join(Page(build_report(context)).text)
    assert "by the screen's grader" not in before, "of an earlier version, without outcomes"
    counts = [
        {"right": 4, "wrong": 0, "unparsed": 0, "truncated": 0},
        {"right": 1, "wrong": 0, "unparsed": 2, "truncated": 1},
    ]
    cohort["problems"] = [
        problem | {"outcomes": of} for problem, of in zip(cohort["problems"], counts, strict=True)
    ]
    html = build_report(context)
    text = " ".join(Page(html).text)
    sums = "5 right, 0 wrong, 2 unparsed, 1 truncated."
    assert f"Their 8 trunk rollouts, by the screen's grader: {sums}" in text
    section = html[html.index("Problems scanned for cohort screened") :]
    row = section[section.index('<th scope="row" class="text">21</th>') :]
    assert re.findall("<td>(.*?)</td>", row[: row.index("</tr>")])[-4:] == ["1", "0", "2", "1"]


def test_figures_carry_their_data(context):
    links = [link for link in Page(build_report(context)).links if "csv" in link]
    assert len(links) == 5
    data = links[0].removeprefix("data:text/csv;base64,")
    assert base64.b64decode(data) == b"estimate,pivots\n0.5,3\n"


def test_sections_are_linked(context, published):
    for case in (context, published):
        html = build_report(case)
        links = [link[1:] for link in Page(html).links if link.startswith("#")]
        anchors = [link for link in links if not link.startswith("from-")]
        assert len(anchors) > 10 and all(f'<section id="{a}"' in html for a in anchors)
        assert set(re.findall('<section id="([a-z]+)"', html)) == {*anchors}


def test_rows_columns_and_readings_say_whose_they_are(context):
    html = build_report(context)
    assert '<tr data-of="above"><th scope="row" class="text">Above</th>' in html
    assert '<th scope="col" data-of="above">Above</th>' in html
    assert '<li data-of="above">In “Above”' in html
    assert f'<div data-of="{" ".join(c["name"] for c in ALL)}">\n<h3>screened</h3>' in html


def test_data_of_the_browser_cannot_end_their_script_element(context):
    problems = {"0": {"question": "Is 1 </script> 2?", "answer": 1}}
    context["configurations"][0] = ABOVE | {"browser": selection(problems=problems)}
    page = build_report(context)
    start = page.index('id="browser-data">') + len('id="browser-data">')
    data = json.loads(page[start : page.index("</script>", start)])
    assert data["configurations"][0]["problems"] == problems
    listed = data["configurations"][0]["passes"]
    assert [data["passes"][name]["label"] for name in listed] == ["exact 1", "exact 2", "re-feed"]


def test_what_the_browser_leaves_out_is_said(context):
    before = build_report(context)
    context["configurations"][0] = ABOVE | {"browser": selection(total=7)}
    text = " ".join(Page(build_report(context)).text)
    assert "“Above”: 0 of 7 pivots" in text and "“Above”: 0 of" not in before


def test_each_number_of_table_1_leads_to_the_files_that_it_came_from(context):
    html = build_report(context)
    row = html[html.index('<tr data-of="above">') :]
    row = row[: row.index("</tr>")]
    assert re.findall('href="#([^"]*)"', row) == [
        f"from-above-{group}" for group in ("all", "refeed", "exact2", "all", "all", "all")
    ]
    origin = html[html.index('<tr id="from-above-refeed"') :]
    origin = origin[: origin.index("</tr>")]
    assert re.findall('href="([^"]*)"', origin) == [
        "../records/above.json",
        "../passes/above/0-of-1/exact1.jsonl",
        "../passes/above/0-of-1/refeed.jsonl",
    ]
    assert "<svg" in html and ">analyze</text>" in html


def test_the_page_states_the_registration_and_the_verdict_of_its_rule(context):
    text = " ".join(" ".join(Page(build_report(context)).text).split())
    assert "No lock was written before this run." in text
    assert "Above deviates material: 55.6% is above 5%" in text
    assert "continuations.k: registered 4, here 1" in text
    lock = {"time": "2026-01-01", "commit": "abc", "dirty": True, "sha256": "d" * 64}
    context["registration"] = REGISTRATION | {"lock": lock}
    text = " ".join(" ".join(Page(build_report(context)).text).split())
    assert "Locked 2026-01-01 at commit abc of a modified checkout; the lock's sha256 is" in text


def test_page_prints_no_undefined_value(context):
    text = " ".join(Page(build_report(context)).text)
    assert not re.search(r"\b(None|nan|NaN|inf|null)\b(?! leaves)", text)
    assert "— Cannot be computed" in text


def test_page_holds_the_answer_and_every_reading(context):
    text = " ".join(Page(build_report(context)).text)
    for sentence in answer(context["configurations"]):
        assert sentence in text
    for case in context["configurations"]:
        assert reading(case)[1:] in text


def test_cohort_shared_by_all_configurations_appears_once(context):
    text = " ".join(Page(build_report(context)).text)
    assert text.count("scan limit reached: 1 of 2") == 1
    assert "problems 20 to 29" in text and "2 requested, 10 scanned, 1 found" in text
    assert "“Few”, “Identical” and “Nothing”" in text


def test_settings_are_explained_by_the_schema(context):
    text = " ".join(Page(build_report(context)).text)
    k = load_schema()["$defs"]["continuations"]["properties"]["k"]["description"]
    assert k in text
    assert "Settings in which the configurations differ" in text
    assert "not set" in text


def test_every_setting_of_a_study_is_explained():
    meanings = _meanings(load_schema())
    config = Path(__file__).parents[2] / "config" / "config.yaml"
    for configuration in load_study(read_config(config)).configurations.values():
        names = flatten(configuration.sections)
        assert {"engine.numerics", "grading.grader"} <= names.keys()
        assert [name for name in names if not meanings[name]] == []


def test_table_read_back_from_csv_gives_the_same_page(context, tmp_path):
    file = tmp_path / "table1.csv"
    cases = context["configurations"]
    for checks in ({}, {"invariance": "not invariant: prefill"}):
        table = table1([cases[0] | checks, *cases[1:]])
        table.round(6).to_csv(file, index=False)
        read = context | {"table": pd.read_csv(file)}
        assert build_report(context | {"table": table}) == build_report(read)


def test_figure_1_is_explained_by_the_configuration_it_shows(context):
    first = " ".join(Page(build_report(context)).text)
    other = " ".join(Page(build_report(context | {"main": "few"})).text)
    assert "Under re-feed 10 sign changes have a zero" in first
    assert "Under re-feed 7 sign changes have a zero" in other


def test_page_of_an_empty_run(context):
    empty = {"configurations": [], "table": table1([]), "figures": {}, "engine": {}}
    text = " ".join(Page(build_report(context | empty)).text)
    assert "This run cannot tell" in text and "Nothing was recorded." in text


def beyond_section(context):
    html = build_report(context)
    section = html[html.index('<section id="beyond"') :]
    return " ".join(" ".join(Page(section[: section.index("</section>") + 10]).text).split())


def test_second_table_is_in_its_section(context):
    text = beyond_section(context)
    assert "Table 3. Intervals, tests and conditions" in text
    assert "Nothing is observed over K." in text
    assert "Above Below Level Few Identical Nothing Excess (pp) +55.6 [" in text


def test_every_configuration_has_a_reading_of_its_tests(context):
    text = beyond_section(context)
    # Six problems, all one way: 2 / 2^6; the largest of three p values of .03 after Holm.
    assert "In “Above” the excess is +55.6 points (95% interval +" in text
    assert "the two rates differ on 6 problems: sign-flip p = 0.031 (exact)" in text
    assert "with so few p cannot be below 0.25" in text
    assert (
        "In “Identical” the excess is +0.0 points (no interval: no variance), and no problem"
        " differs, so there is nothing to test." in text
    )
    assert "In “Nothing” no pivot is eligible, so there is nothing to test." in text
    assert "the floor explains 0% (no interval: no variance) of the re-feed sign changes" in text


def test_a_floor_above_the_refeed_is_said(context):
    context["configurations"] = [configuration("Mixed", "ffr", "ff", "rf")]
    assert "so the floor explains all of it" in beyond_section(context)


def test_outcomes_appear_when_recorded(context):
    graded = {name: {"actual": ["right"], "alt": ["truncated"]} for name in ("exact1", "exact2")}
    rows = [r | {"outcomes": graded | {"refeed": graded["exact1"]}} for r in records("s")]
    before = Page(build_report(context)).tables
    context["configurations"][0] = ABOVE | {"analysis": analysed(rows)}
    page = Page(build_report(context))
    assert page.tables == before + 1 and "How the continuations were graded" in page.text


def answered(name, identical, position=None):
    first = {"sequence": "0.0", "position": position, "tokens": [1, 2], "delta": 0.5}
    return {
        "name": name, "identical": identical, "sequences": 1024, "passed": identical == 1024,
        "first": None if position is None else first,
    }  # fmt: skip


def self_check(name, labels, *failed):
    names = ("repetition", "warm cache", "batch size", "prefill")
    return {
        "name": name,
        "configurations": [{"name": label.lower(), "label": label} for label in labels],
        "checks": [answered(n, 3, 7) if n in failed else answered(n, 1024) for n in names],
        "verdict": f"not invariant: {', '.join(failed)}" if failed else "invariant",
        "engine": {
            "attention_backend": "FLASH_ATTN", "flash_attn_version": 3 if failed else None,
            "engine_process": "engine-core",
        },
    }  # fmt: skip


def test_self_checks_stand_in_the_engine_section(context):
    checks = [
        self_check("m_batch-invariant_0a", ["Few", "Level"], "prefill"),
        self_check("m_batch-invariant_1b", ["Identical"]),
    ]
    before = Page(build_report(context)).tables
    page = Page(build_report(context | {"invariance": checks}))
    text = " ".join(" ".join(page.text).split())
    section = text[text.index("Facts about the engine") :]
    assert page.tables == before + 1
    assert (
        "m_batch-invariant_0a Few / Level FLASH_ATTN 3 engine-core 1,024 of 1,024 1,024 of 1,024"
        " 1,024 of 1,024 3 of 1,024, from 7 not invariant: prefill"
    ) in section
    assert "1b Identical FLASH_ATTN engine-core" in section and "1,024 invariant" in section
    for question in ("Repetition", "Warm cache", "Batch size", "Prefill"):
        assert question in section
    assert "the promise was not kept" in section


@pytest.mark.parametrize("none", [{}, {"invariance": []}])
def test_without_a_self_check_the_page_says_nothing_of_one(context, none):
    assert "self-check" not in build_report(context | none)


def test_table_1_of_the_page_says_which_row_failed_its_check(context):
    verdict = "not invariant: prefill"
    cases = [
        case | ({"invariance": verdict} if case["name"] == "few" else {})
        for case in context["configurations"]
    ]
    text = " ".join(Page(build_report(context | {"table": table1(cases)})).text)
    assert text.count(f"Few ({verdict})") == 1 and text.count(verdict) == 1


def test_engine_facts_are_explained(context):
    facts = {
        "flash_attn_version": None, "linear_rows": 32, "cuda_graphs": "FULL_AND_PIECEWISE",
        "tensor_parallel": 2, "async_scheduling": False,
    }  # fmt: skip
    text = " ".join(" ".join(Page(build_report(context | {"engine": facts})).text).split())
    for name, value in zip(
        facts, ("not set", "32", "FULL_AND_PIECEWISE", "2", "false"), strict=True
    ):
        assert f"{name} {value} {ENGINE_FACTS[name]}" in text


def test_missing_context_is_named(context):
    del context["counts"], context["engine"]
    with pytest.raises(ValueError, match="lacks counts, engine"):
        build_report(context)


@pytest.fixture
def published(context):
    claims = pd.DataFrame(
        [
            ["table1.main.n", "Table 1", "eligible pivots", "636", "636", "match"],
            ["5.1.t", "5.1", "clustered t, range", "2.9–6.4", "2.8–6.4", "differs"],
            ["4.cost", "4", "cost", "under $10", "no price", "not derivable"],
        ],
        columns=["id", "section", "quantity", "claimed", "recomputed", "verdict"],
    )
    files = [{"name": "campaign2_k8", "path": "a/k8.json", "sha256": "ab" * 32, "local": True}]
    facts = {"repository": "o/r", "commit": "c0ffee", "files": files, "note": "Left out: phi"}
    return context | {"published": facts | {"claims": claims}}


def test_page_of_a_published_run(published):
    page = Page(build_report(published))
    text = " ".join(" ".join(page.text).split())
    assert page.headings[5:7] == ["Where the records come from", "The paper, claim by claim"]
    assert not {"Engine", "Cohorts and screening"} & set(page.headings)
    assert "match: 1, differs: 1, not derivable: 1." in text and "Left out: phi" in text
    differing = text[text.index("Claims that differ") : text.index("Every claim")]
    assert "2.9–6.4 2.8–6.4" in differing and "636" not in differing
    assert "local folder" in text and "cut off or give no number" not in text


def test_no_table_of_differences_where_none_differs(published):
    claims = published["published"]["claims"].query("verdict != 'differs'")
    page = build_report(published | {"published": published["published"] | {"claims": claims}})
    assert "Claims that differ" not in page and "differs: 0" in page


def test_figure_3_says_what_it_does_not_show(context):
    deltas = {f"greedy_first_logprob_delta_{name}": 0.0 for name in ("exact2", "refeed")}
    analysis = analysed([r | deltas for r in records("rs")])
    cases = [
        configuration("In", analysis=analysis),
        configuration("Out", analysis=analysis, in_figure3=False),
    ]
    page = build_report(context | {"configurations": cases, "table": table1(cases)})
    assert "Not drawn: “Out”." in page


def test_shards_are_gathered_over_configurations(tmp_path):
    """Engine facts side by side where they differ, all requests, links to the passes of each."""
    files = defaultdict(list)
    stored = {"config": {"k": 1, "sections": {}}, "per_problem": [], "pivots": records("s")}
    for name, device in (("one", "cpu"), ("other", "cuda")):
        ran = [("0-of-2", [{"vllm": "0", "device": device}], 5), ("1-of-2", [], 0)]
        contents = {
            "records": stored,
            "analyses": analysed(stored["pivots"]),
            "browser": selection(),
            "shards": [dict(zip(("shard", "engines", "requests"), s, strict=True)) for s in ran],
        }
        for kind, content in contents.items():
            files[kind].append(tmp_path / kind / f"{name}.json")
            write_json(files[kind][-1], content)
    rows = [
        {"name": name, "label": name, "model": "m", "numerics": "stock", "in_figure3": True,
         "engine_set": "e", "trunk_sets": ["t"]}
        for name in ("one", "other")
    ]  # fmt: skip
    table, registered = tmp_path / "table1.csv", tmp_path / "registration.json"
    write_text(table, "a\n1\n")
    write_json(registered, {})
    cohort = tmp_path / "t" / "cohort.json"
    write_json(cohort, {"problems": [], "note": ""})
    gathered = gather(
        run="r", title="t", rows=rows, cohorts=[cohort], invariance=[], table=table, figures=[],
        registration=registered, rule_graph=table, output=tmp_path / "report" / "index.html",
        **files,
    )  # fmt: skip
    assert gathered["engine"] == {"vllm": "0", "device": "one: cpu; other: cuda"}
    assert gathered["counts"]["requests"] == 10
    links = {link for each in gathered["origins"] for link in each["passes"] + each["trunks"]}
    assert {"../passes/other/1-of-2/exact1.jsonl", "../trunks/t/0-of-2/trunks.jsonl"} <= links
