"""A dry run of every configuration and of every profile; no engine, no network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(p for p in (ROOT / "config").rglob("*.yaml") if p.name != "catalog.yaml")
PROFILES = sorted(path.parent for path in (ROOT / "profiles").glob("*/profile.yaml"))


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


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_every_profile_can_be_planned(profile):
    assert "Job stats:" in plan("--workflow-profile", profile, "--forceall")


def test_the_architecture_page_draws_the_rules_as_they_are():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ +(\w+) --> ([\w &]+)$", page, flags=re.M)
    drawn = {(source, end) for source, ends in lines for end in ends.split(" & ")}
    graph = plan("--configfile", ROOT / "config" / "config.yaml", "--rulegraph", "mermaid-js")
    names = dict(re.findall(r"^\s+(id\d+)\[(\w+)\]$", graph, flags=re.M))
    edges = re.findall(r"^\s+(id\d+) --> (id\d+)$", graph, flags=re.M)
    assert drawn == {(names[a], names[b]) for a, b in edges if names[b] != "all"} != set()
