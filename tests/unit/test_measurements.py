"""The tables of docs/measurements.md, recomputed from the records that are committed with them."""

import gzip
import json
from pathlib import Path

import pytest

from replay.analysis import analyze
from replay.config import load_study, read_config
from replay.controls import controls
from replay.controls_table import write_controls
from replay.tables import table1, with_verdicts, write_table

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data" / "h200"
CPU = ROOT / "docs" / "data" / "cpu"
PAGE = ROOT / "docs" / "measurements.md"


def records(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def rows(run):
    """Rows of Table 1 with their analyses; every configuration was run."""
    study = load_study(read_config(ROOT / "config" / f"{run}.yaml"))
    checks = sorted((DATA / run / "invariance").glob("*.json"))
    for row in with_verdicts(study.rows, checks):
        content = records(DATA / run / "records" / f"{row['name']}.json.gz")
        yield row | {"analysis": analyze(content["pivots"], content["config"]["k"])}


@pytest.mark.parametrize("run", ["gpu", "gpu-gsm8k"])
def test_tables_follow_from_the_records(run, tmp_path):
    csv, markdown = tmp_path / "table1.csv", tmp_path / "table1.md"
    write_table(table1(list(rows(run))), csv, markdown, tmp_path / "table1.tex")
    assert csv.read_text() == (DATA / run / "table1.csv").read_text()
    page = PAGE.read_text()
    for line in markdown.read_text().splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert f"| {' | '.join([cells[0], *cells[2:7]])} |" in page


@pytest.mark.parametrize(("run", "data"), [("controls", CPU), ("gpu-controls", DATA)])
def test_the_controls_follow_from_their_records(run, data, tmp_path):
    study = load_study(read_config(ROOT / "config" / f"{run}.yaml"))
    table = []
    for row in study.rows:
        content = records(data / "controls" / "records" / f"{row['name']}.json.gz")
        table.append(row | {"analysis": controls(content)})
    csv, markdown = tmp_path / "table2.csv", tmp_path / "table2.md"
    write_controls(table, csv, markdown, tmp_path / "table2.tex")
    assert csv.read_text() == (data / "controls" / "table2.csv").read_text()
    assert markdown.read_text() in PAGE.read_text()


@pytest.mark.parametrize("run", ["gpu", "gpu-gsm8k"])
def test_what_the_page_says_of_invariance(run):
    for row in rows(run):
        identity = row["analysis"]["identity"]
        invariant = row["invariance"] == "invariant"
        assert identity["refeed"]["all_identical"] == invariant
        in_process = not row["name"].endswith("-core")
        assert identity["exact2"]["all_identical"] == (in_process or invariant)


def test_the_arms_of_section_1():
    verdicts = {
        path.stem: json.loads(path.read_text())["verdict"]
        for path in (DATA / "invariance").glob("*.json")
    }
    invariant = {name for name, verdict in verdicts.items() if verdict == "invariant"}
    assert invariant == {
        "batch-invariant", "batch-invariant-core", "batch-invariant-triton", "batch-invariant-flex",
    }  # fmt: skip
    assert set(verdicts) - invariant == {"stock", "stock-core", "batch-invariant-fa3"}


def test_the_table_of_section_3():
    page = PAGE.read_text()
    lines = (DATA / "two-gpus" / "bench.jsonl").read_text().splitlines()
    replays = [line for line in map(json.loads, lines) if "restored_equals_resident" in line]
    assert len(replays) == 3
    for line in replays:
        rates = sorted(line[f"{name}_tokens_per_s"] for name in ("exact2", "refeed"))
        cells = [
            f"{line['ranks']}, {line['numerics']}",
            *(line[name] for name in (
                "restored_equals_resident", "exact2_equals_exact1", "refeed_equals_exact1",
            )),
            f"{rates[0]:,.0f} to {rates[1]:,.0f}",
            f"{line['save_gb_per_s']:.2f}",
            f"{line['restore_gb_per_s']:.2f}",
        ]  # fmt: skip
        assert f"| {' | '.join(cells)} |" in page
    walls = json.loads((DATA / "two-gpus" / "shards.json").read_text())
    for name in walls:
        assert f"| {walls[name]['wall_s']} s |" in page
