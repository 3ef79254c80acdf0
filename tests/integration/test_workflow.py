"""The real DAG on real vLLM on the CPU, at tiny size, in a copy of the checkout."""

import json
import os
import random
import re
import subprocess
import sys
import time
from itertools import pairwise

import pandas as pd
import pytest
import yaml
from kills import killed_runs
from tiny_run import TINY

from replay import published
from replay.storage import sha256_file

pytestmark = pytest.mark.engine

GRADED = {"grade", "records", "browser", "analyze"}  # made from the passes
SHOWN = {
    "table", "decomposition", "statistics", "figures", "registration", "report",
}  # made from the analyses  # fmt: skip


def test_everything_that_is_promised_is_there(finished):
    results = finished.folder / "results" / "tiny"
    table = pd.read_csv(results / "tables" / "table1.csv")
    assert list(table.columns) == [
        "configuration", "model", "n", "refeed_pct", "refeed_polarity_pct", "floor_pct",
        "floor_polarity_pct", "excess_pp", "t_clustered", "z", "registration",
    ]  # fmt: skip
    assert list(table.configuration) == ["main", "batch-invariant"]
    parts = pd.read_csv(results / "tables" / "table2.csv").set_index("configuration")
    assert list(parts.index) == ["main", "batch-invariant"]
    assert parts["note"].isna().all() and not parts.loc["batch-invariant", "state_pct"] > 0
    statistics = pd.read_csv(results / "tables" / "statistics.csv")
    assert set(statistics.configuration) == {"main", "batch-invariant"}
    for number in (1, 2, 3, 4, 5):
        assert (results / "figures" / f"figure{number}.png").read_bytes()[:4] == b"\x89PNG"
        assert (results / "figures" / f"figure{number}.pdf").read_bytes()[:4] == b"%PDF"
        assert len(pd.read_csv(results / "figures" / f"figure{number}.csv"))
    page = (results / "report" / "index.html").read_text()
    assert (
        "Table 1" in page
        and "Engine self-check" in page
        and "nan" not in page.lower().split()
        and ">None<" not in page
    )
    assert not re.search(r'(src|href)="https?:', page)


def test_eight_cores_run_one_engine_at_a_time(finished):
    engines = finished.times("screen", "trunks", "passes", "check_invariance")
    assert len(engines) >= 9, "three cohorts' screens and trunks, two passes, one self-check"
    assert all(end <= start for (_, end), (start, _) in pairwise(engines))


def test_the_page_holds_every_pivot_with_its_texts(finished):
    results = finished.folder / "results" / "tiny"
    page = (results / "report" / "index.html").read_text()
    start = page.index('id="browser-data">') + len('id="browser-data">')
    data = json.loads(page[start : page.index("</script>", start)])
    for shown in data["configurations"]:
        records = json.loads((results / "records" / f"{shown['name']}.json").read_text())
        assert len(shown["pivots"]) == shown["total"] == len(records["pivots"])
        k = records["config"]["k"]
        assert all(len(arm["continuations"]) == k + 1 for p in shown["pivots"] for arm in p["arms"])
        assert all(len(r["segments"]) == 2 * len(r["at"]) + 1 for r in shown["rollouts"].values())


def test_a_row_of_batch_invariant_numerics_has_its_engine_checked(finished):
    (path,) = (finished.folder / "results/tiny/invariance").glob("*.json")
    assert path.name.startswith("smollm2-135m_batch-invariant_")
    result = finished.read(path)
    assert result["verdict"] == "invariant", result["checks"]
    assert [check["name"] for check in result["checks"]] == [
        "repetition", "warm cache", "batch size", "prefill",
    ]  # fmt: skip
    assert all(check["sequences"] > 0 and check["passed"] for check in result["checks"])
    assert result["engine"]["numerics"] == "batch-invariant"


def test_every_engine_of_a_study_can_be_checked(finished):
    config = finished.configure(run="other")
    assert finished.planned("invariance", config=config) == {"check_invariance": 2, "invariance": 1}
    finished.configure()
    assert finished.planned("invariance") == {"check_invariance": 1, "invariance": 1}
    output = finished.snakemake("invariance")
    tables = finished.folder / "results" / "tiny" / "tables"
    assert (tables / "invariance.md").read_text(encoding="utf-8") in output
    table = pd.read_csv(tables / "invariance.csv").set_index(["engine", "check"])
    assert len(table) == 2 * 4
    stock = table[table.index.get_level_values("engine").str.contains("_stock_")]
    passed = (stock["identical"] == stock["sequences"]).droplevel("engine")
    assert passed["repetition"] and not (passed["batch size"] and passed["prefill"])
    assert stock["verdict"].str.startswith("not invariant: ").all()
    assert set(table["verdict"].drop(stock.index)) == {"invariant"}


def test_a_job_with_another_gpu_resource_than_its_engine_takes_is_refused(finished):
    """Before an engine starts."""
    config, options = finished.copied("refused", "screen", "trunks")
    output = finished.snakemake(
        "batch-invariant", *options, "--set-resources", "passes:gpu=1", config=config, ok=False
    )
    assert (
        "error: this job was given gpu=1, but engine.device cpu with engine.tensor_parallel 1"
        " takes 0; take the override of the resource away"
    ) in output
    results = finished.folder / "results" / "refused"
    assert not (results / "passes" / "batch-invariant" / "0-of-1").exists()
    assert len(list((results / "logs").rglob("*.log"))) == 1


def test_plan_needs_no_engine(finished):
    assert finished.planned("plan") == {"plan": 1}
    finished.snakemake("plan")
    plan = pd.read_csv(finished.folder / "results" / "tiny" / "tables" / "plan.csv")
    assert {2, 4, 8, 16, 32} <= set(plan.k) and (plan.requests > 0).all()
    assert "planned from “Main pooled”" in (
        finished.folder / "results" / "tiny" / "tables" / "plan.md"
    ).read_text(encoding="utf-8")


def test_records_are_complete_and_consistent(finished):
    path = finished.folder / "results/tiny/records/main.json"
    # As published records are read: schema, estimates, and the fields of the second campaign.
    records = published.read(path, sha256_file(path))
    assert len(records["pivots"]) >= 4
    for row in records["pivots"]:
        assert row["cache_ok_exact1"] and row["cache_ok_exact2"] and row["flags"] == []
        assert row["cache_ok_prefill_warm"]
        assert row["A_exact1"] in (-1.0, -0.5, 0.0, 0.5, 1.0)
        assert row["offset"] <= 2 and row["margin"] < 1.0
        assert row["A_exact1"] == row["A_exact2"], "the in-process floor is zero"
    assert any(row["trunk_delta_exact1"] is not None for row in records["pivots"])
    orders = [tuple(entry["pass_order"]) for entry in records["per_problem"] if entry["pivots"]]
    assert {frozenset(order) for order in orders} == {frozenset(records["config"]["passes"])}
    assert len(set(orders)) > 1, "the order is drawn for every problem"
    cohorts = {row["cohort"] for row in records["pivots"]}
    assert "primary" in cohorts
    report = next((finished.folder / "results/tiny/screen").glob("screened_*/cohort.json"))
    cohort = json.loads(report.read_text())
    assert cohort["found"] == 1 or cohort["note"].startswith("scan limit reached")


def test_batch_invariant_numerics_make_all_passes_identical(finished):
    shard = finished.folder / "results/tiny/passes/batch-invariant/0-of-1"
    rows = {}
    passes = finished.read("results/tiny/records/batch-invariant.json")["config"]["passes"]
    assert {"exact1", "exact2", "refeed", "prefill_warm"} == set(passes)
    for name in passes:
        rows[name] = [json.loads(line) for line in (shard / f"{name}.jsonl").open()]
        for row in rows[name]:
            del row["num_cached_tokens"], row["resumed"]
    assert rows["exact1"] and all(rows[name] == rows["exact1"] for name in passes)


def test_stock_refeed_differs_on_some_channel(finished):
    records = finished.read("results/tiny/records/main.json")["pivots"]
    assert not all(row["probe_equal_refeed"] for row in records)
    assert all(row["probe_equal_exact2"] for row in records)


def test_a_study_with_answers_of_another_kind_comes_to_its_page(finished):
    """The example of docs/own-study.md, smaller."""
    example = yaml.safe_load((finished.folder / "config/examples/yes-no.yaml").read_text())
    sizes = {name: TINY[name] for name in ("engine", "trunks", "pivots", "continuations")}
    cohort = {"mixed": {"dataset": "questions", "start": 0, "n": 2}}
    rows = {"stock": example["configurations"]["stock"]}
    config = finished.configure(**example | sizes | {"cohorts": cohort, "configurations": rows})
    finished.snakemake("all", config=config)
    page = (finished.folder / "results/yes-no/report/index.html").read_text(encoding="utf-8")
    assert "Is 7 larger than 4?" in page
    pivots = finished.read("results/yes-no/records/stock.json")["pivots"]
    keys = [str(pivots[0][name]) for name in ("problem_id", "rollout", "abs_pos")]
    command = [sys.executable, "workflow/scripts/pivot.py", "--configfile", str(config), "stock"]
    shown = subprocess.run(
        [*command, *keys], cwd=finished.folder, capture_output=True, text=True, check=True
    )
    assert "larger than" in shown.stdout
    assert finished.planned("all", config=config) == {}


def test_a_second_run_has_nothing_to_do(finished):
    assert "Nothing to be done" in finished.snakemake("all")


def test_changing_k_reruns_passes_and_below(finished):
    config = finished.configure(continuations=TINY["continuations"] | {"k": 3})
    planned = finished.planned("all", config=config)
    finished.configure()
    assert planned == {
        "passes": 2, "grade": 2, "records": 2, "analyze": 2, "table": 1,
        "decomposition": 1, "statistics": 1, "figures": 1, "browser": 2, "registration": 1,
        "report": 1,
    }  # fmt: skip


def test_changing_the_grader_reruns_grading_and_below(finished):
    config = finished.configure(grading={"grader": "published"})
    planned = finished.planned("all", config=config)
    finished.configure()
    assert planned == {
        "grade": 2, "records": 2, "analyze": 2, "table": 1, "decomposition": 1, "statistics": 1,
        "figures": 1, "browser": 2, "registration": 1, "report": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("module", "reruns"),
    [
        ("report", {"report"}),
        ("tables", {"analyze"} | SHOWN),
        ("invariance", {"check_invariance", "table", "decomposition", "figures", "report"}),
        ("pivots", {"passes", *GRADED} | SHOWN),
        ("grading", {"screen", "trunks", "passes", *GRADED} | SHOWN),
        ("devices", {"screen", "trunks", "passes", *GRADED, "check_invariance"} | SHOWN),
    ],
)  # fmt: skip
def test_editing_a_helper_module_reruns_what_uses_it(finished, module, reruns):
    path = finished.folder / "workflow" / "scripts" / "replay" / f"{module}.py"
    original = path.read_text()
    path.write_text(original + "\nEDITED = True\n")
    try:
        planned = finished.planned("all")
    finally:
        path.write_text(original)
    assert set(planned) == reruns


def test_touching_files_reruns_nothing(finished):
    for path in (finished.folder / "workflow").rglob("*.py"):
        path.touch()
    assert finished.planned("all") == {}


def test_a_configuration_is_a_target_of_its_own(finished):
    config = finished.configure(run="other")
    planned = finished.planned("batch-invariant", config=config)
    assert planned["passes"] == planned["records"] == planned["analyze"] == 1
    assert planned["trunks"] == planned["screen"] == 1
    assert not (SHOWN | {"browser", "check_invariance"}) & set(planned)


def set_time(folder, seconds):
    """The time of a folder as Snakemake reads it, relative to now."""
    for path in (folder, folder / ".snakemake_timestamp"):
        os.utime(path, (time.time() + seconds,) * 2)


def test_a_clock_that_jumps_costs_a_job_at_most(finished):
    """Set back between two jobs, files from the future; set forward, files that look too old."""
    config, options = finished.copied("clock", "screen", "trunks", "passes")
    results = finished.folder / "results" / "clock"
    grades, passes = results / "grades" / "main", results / "passes" / "main" / "0-of-1"
    (trunks,) = results.glob("trunks/primary_*_stock_*/0-of-1")
    command = [str(grades.relative_to(finished.folder)), *options]
    set_time(passes, 3600)
    output = finished.snakemake(*command, config=config, ok=False)
    assert re.search(r"Output results/clock/grades/.* has older modification time .*clock", output)
    assert not grades.exists()
    set_time(passes, 0)
    finished.snakemake(*command, config=config)
    finished.assert_same("clock", "grades/main/*.jsonl", "grades/main/SHA256SUMS")
    set_time(trunks, 3600)
    assert finished.planned(*command, config=config) == {"passes": 1, "grade": 1}


def test_a_killed_run_loses_nothing_and_changes_nothing(finished):
    """kill -9 at two seeded moments, then the same command; tests/bench/kill_soak.py: more."""
    generator = random.Random(1)
    assert sum(killed_runs(finished, 2, generator)) == 2
