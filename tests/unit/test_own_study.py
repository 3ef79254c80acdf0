"""docs/own-study.md: its example is a valid study, and what it shows is true."""

import re
import textwrap
from pathlib import Path

import pytest

from replay import grading
from replay.config import check_local_sources, load_study, read_config
from replay.datasets import ANSWERS, load_problems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-study.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "config" / "examples" / "yes-no.yaml"
DATA = ROOT / "config" / "examples" / "yes-no.jsonl"


def test_the_example_is_a_valid_study_in_under_30_lines(monkeypatch):
    monkeypatch.chdir(ROOT)
    check_local_sources(load_study(read_config(EXAMPLE)))
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) < 30 and f"configuration, {len(lines)} lines" in PAGE
    problems = load_problems(DATA, answers="yes-no")
    assert f"{len(problems)} yes/no" in PAGE.replace("\n", " ")
    assert {problem.answer for problem in problems} == {"yes", "no"}


def test_what_the_page_quotes_is_in_the_example():
    example = [line.strip() for line in (EXAMPLE.read_text() + DATA.read_text()).splitlines()]
    section = PAGE.partition("## 1. Data")[2].partition("## 4.")[0]
    quoted = [line.strip() for line in re.findall(r"^    .*", section, flags=re.M)]
    own = ["models:", "mine: {source: local, path: /data/my-model}", "model: mine"]
    assert len(quoted) > len(own) + 4
    assert [line for line in quoted if line not in example and line not in own] == []


def test_the_table_of_graders_is_the_registry():
    rows = re.findall(r"^\| `([\w-]+)`.*\| ([^|]+) \|$", PAGE, flags=re.M)
    table = {kind: re.findall(r"`([\w-]+)`", graders) for kind, graders in rows[1:]}
    assert table == {kind: grading.graders_of(kind) for kind in ANSWERS}


def test_the_grader_that_the_page_shows_is_one_function(monkeypatch):
    monkeypatch.setattr(grading, "GRADERS", dict(grading.GRADERS))
    code = textwrap.dedent(re.search(r"(?:^    .*\n)+", PAGE.partition("## Another")[2], re.M)[0])
    exec(code, {"register": grading.register})
    assert grading.grade("last-word", "So it is: no.", "no", "stop").outcome == "right"
    assert grading.grade("last-word", "", "no", "stop").outcome == "unparsed"


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    images = re.findall(r'src="([^"]+)"', path.read_text(encoding="utf-8"))
    assert [link for link in links + images if not (path.parent / link).exists()] == []
