"""A dry run of every configuration; no engine, no network. Profiles: test_profiles.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_STUDY = ("catalog.yaml", "registration.yaml")
CONFIGS = sorted(p for p in (ROOT / "config").rglob("*.yaml") if p.name not in NO_STUDY)


def plan(*arguments):
    result = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "-n", "all", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: str(p.relative_to(ROOT / "config")))
def test_every_configuration_can_be_planned(config):
    # Into a run of its own, so that what was made before changes nothing.
    output = plan("--configfile", config, "--config", "run=planned", "--forceall")
    assert "results/planned/report/index.html" in output


def test_the_architecture_page_draws_the_rules_as_they_are():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ +(\w+) --> ([\w &]+)$", page, flags=re.M)
    drawn = {(source, end) for source, ends in lines for end in ends.split(" & ")}
    graph = plan("--configfile", ROOT / "config" / "config.yaml", "--rulegraph", "mermaid-js")
    names = dict(re.findall(r"^\s+(id\d+)\[(\w+)\]$", graph, flags=re.M))
    edges = re.findall(r"^\s+(id\d+) --> (id\d+)$", graph, flags=re.M)
    assert drawn == {(names[a], names[b]) for a, b in edges if names[b] != "all"} != set()
