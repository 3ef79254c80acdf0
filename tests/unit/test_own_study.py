"""docs/own-study.md: its example is a valid study, and what it shows is true."""

import re
import shutil
import subprocess
import sys
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
    problems = load_problems(DATA, "yes-no")
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


def test_the_guide_to_a_new_grader_holds(tmp_path):
    """Its steps in a copy of the project, and the tests that a new grader can break.

    The name is another than the page's, which may have been followed already.
    """
    guide = PAGE.partition("## Another grader")[2].replace("last-word", "final-word")
    grader, test = (textwrap.dedent(c) for c in re.findall(r"^(?: {7}.*\n)+", guide, flags=re.M))
    for name in ("config", "docs", "tests/unit", "tests/data", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    scripts, tests = tmp_path / "workflow" / "scripts", tmp_path / "tests" / "unit"

    def python(*arguments, folder=tmp_path):
        ran = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    with (scripts / "replay" / "grading.py").open("a") as file:
        file.write(f"\n\n{grader}")
    page = tmp_path / "docs" / "own-study.md"
    page.write_text(re.sub(r"^(\| `yes-no` .*) \|$", r"\1, `final-word` |", PAGE, flags=re.M))
    python("replay.config_docs", folder=scripts)
    with (tests / "test_text_graders.py").open("a") as file:
        file.write(f"\n\n{test}")
    names = ("grading", "text_graders", "config", "docs", "own_study")
    assert f"tests/unit/test_{{{','.join(names)}}}.py" in guide
    concerned = "(grader or answers or schema or last_word) and not guide"
    files = [f"tests/unit/test_{name}.py" for name in names]
    python("pytest", "-q", "-p", "no:cacheprovider", "-k", concerned, *files)


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    images = re.findall(r'src="([^"]+)"', path.read_text(encoding="utf-8"))
    assert [link for link in links + images if not (path.parent / link).exists()] == []
