"""The real DAG on real vLLM on the CPU, at tiny size, in a copy of the checkout."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from replay import published
from replay.storage import sha256_file

pytestmark = pytest.mark.engine

TINY = {
    "run": "tiny",
    "model": "smollm2-135m",
    "cohorts": {
        "primary": {"dataset": "word-problems", "start": 0, "n": 2},
        "screened": {
            "dataset": "word-problems", "start": 2, "n": 1, "screen": {"scan_limit": 8},
        },
    },
    "engine": {
        "device": "cpu", "threads": 2, "max_model_len": 512, "max_num_batched_tokens": 512,
        "kv_cache_gib": 0.5, "compile": False,
    },
    "trunks": {"rollouts": 4, "max_tokens": 96},
    "pivots": {"max_per_rollout": 1},
    "continuations": {"k": 2, "max_tokens": 48, "probe_tokens": 8},
    "pass_order": "random",
    "configurations": {
        "main": {
            "label": "Main pooled", "cohorts": ["primary", "screened"],
            "passes": ["exact1", "exact2", "refeed", "prefill_warm"],
        },
        "batch-invariant": {
            "cohorts": ["primary"], "numerics": "batch-invariant",
            "passes": ["exact1", "exact2", "refeed", "prefill_warm", "staggered"],
        },
    },
}  # fmt: skip


GRADED = {"grade", "records", "browser", "analyze"}  # made from the passes
SHOWN = {"table", "decomposition", "statistics", "figures", "report"}  # made from the analyses


class Checkout:
    """A copy of the project's tracked files, with the model already there."""

    def __init__(self, root: Path, folder: Path, checkpoint: Path):
        self.folder = folder
        listing = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in listing.stdout.splitlines():
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        models = folder / "resources" / "models"
        models.mkdir(parents=True)
        shutil.copytree(checkpoint, models / checkpoint.name)

    def configure(self, **changes) -> Path:
        path = self.folder / f"{changes.get('run', 'tiny')}.yaml"
        path.write_text(yaml.safe_dump(TINY | changes, sort_keys=False))
        return path

    def command(self, *arguments: str, config: Path | None = None) -> list[str]:
        config = config or self.configure()
        return [
            sys.executable, "-m", "snakemake", "--cores", "1", *arguments,
            "--configfile", str(config),
        ]  # fmt: skip

    def snakemake(self, *arguments: str, config: Path | None = None, ok: bool = True) -> str:
        result = subprocess.run(
            self.command(*arguments, config=config),
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        output = result.stdout + result.stderr
        assert (result.returncode == 0) == ok, output + self.logs()
        return output

    def logs(self) -> str:
        return "\n".join(
            f"--- {p}\n{p.read_text()[-3000:]}" for p in self.folder.glob("results/*/logs/**/*.log")
        )

    def planned(self, *arguments: str, config: Path | None = None) -> dict[str, int]:
        """Jobs that a dry run would do: rule -> count."""
        output = self.snakemake("-n", *arguments, config=config)
        if "Nothing to be done" in output:
            return {}
        table = output.split("Job stats:")[1].split("\n\n")[0]
        rows = re.findall(r"^(\S+)\s+(\d+)$", table, flags=re.M)
        return {rule: int(count) for rule, count in rows if rule not in ("total", "all")}

    def read(self, path: str):
        return json.loads((self.folder / path).read_text())


@pytest.fixture(scope="module")
def finished(root, checkpoint, tmp_path_factory) -> Checkout:
    """A checkout in which `snakemake all` has run."""
    checkout = Checkout(root, tmp_path_factory.mktemp("checkout"), checkpoint)
    # The copied model has no metadata of the job that made it; it is declared current.
    checkout.snakemake("--touch", "resources/models/smollm2-135m")
    checkout.snakemake("all")
    return checkout


def test_everything_that_is_promised_is_there(finished):
    results = finished.folder / "results" / "tiny"
    table = pd.read_csv(results / "tables" / "table1.csv")
    assert list(table.columns) == [
        "configuration", "model", "n", "refeed_pct", "refeed_polarity_pct", "floor_pct",
        "floor_polarity_pct", "excess_pp", "t_clustered", "z",
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
    """Before an engine starts, on trunks of the finished run under another name."""
    results = finished.folder / "results"
    for part in ("screen", "trunks"):
        shutil.copytree(results / "tiny" / part, results / "refused" / part)
    config = finished.configure(run="refused")
    # The copies have no metadata of the jobs that made them, only times.
    output = finished.snakemake(
        "batch-invariant", "--rerun-triggers", "mtime", "--set-resources", "passes:gpu=1",
        config=config, ok=False,
    )  # fmt: skip
    assert (
        "error: this job was given gpu=1, but engine.device cpu with engine.tensor_parallel 1"
        " takes 0; take the override of the resource away"
    ) in output
    assert not (results / "refused" / "passes" / "batch-invariant" / "0-of-1").exists()
    assert len(list((results / "refused" / "logs").rglob("*.log"))) == 1


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
    assert {"exact1", "exact2", "refeed", "prefill_warm", "staggered"} == set(passes)
    for name in passes:
        rows[name] = [json.loads(line) for line in (shard / f"{name}.jsonl").open()]
        for row in rows[name]:
            del row["num_cached_tokens"], row["resumed"]
    assert rows["exact1"] and all(rows[name] == rows["exact1"] for name in passes)


def test_stock_refeed_differs_on_some_channel(finished):
    records = finished.read("results/tiny/records/main.json")["pivots"]
    assert not all(row["probe_equal_refeed"] for row in records)
    assert all(row["probe_equal_exact2"] for row in records)


def test_a_second_run_has_nothing_to_do(finished):
    assert "Nothing to be done" in finished.snakemake("all")


def test_changing_k_reruns_passes_and_below(finished):
    config = finished.configure(continuations=TINY["continuations"] | {"k": 3})
    planned = finished.planned("all", config=config)
    finished.configure()
    assert planned == {
        "passes": 2, "grade": 2, "records": 2, "analyze": 2, "table": 1,
        "decomposition": 1, "statistics": 1, "figures": 1, "browser": 2, "report": 1,
    }  # fmt: skip


def test_changing_the_grader_reruns_grading_and_below(finished):
    config = finished.configure(grading={"grader": "published"})
    planned = finished.planned("all", config=config)
    finished.configure()
    assert planned == {
        "grade": 2, "records": 2, "analyze": 2, "table": 1, "decomposition": 1, "statistics": 1,
        "figures": 1, "browser": 2, "report": 1,
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


def kill_group(process: subprocess.Popen) -> None:
    """kill -9 of the run and of everything that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_kill_in_passes_keeps_finished_problems_and_changes_nothing(finished):
    """The same run under another name, killed after its first problem, then run again."""
    config = finished.configure(run="killed")
    process = subprocess.Popen(
        finished.command("main", config=config),
        cwd=finished.folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    unfinished = finished.folder / "results/killed/passes/main/.0-of-1.unfinished"
    deadline = time.monotonic() + 600
    while not list(unfinished.glob("*/*.json")):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kill_group(process)
    kept = {path: path.stat().st_mtime_ns for path in unfinished.glob("*/*.json")}
    assert kept and not (finished.folder / "results/killed/passes/main/0-of-1").exists()

    finished.snakemake("main", config=config)  # the same command
    assert not unfinished.exists()
    for pattern in ("passes/main/0-of-1/*.jsonl", "records/main.json", "analysis/main.json"):
        files = sorted((finished.folder / "results/tiny").glob(pattern))
        assert files
        for file in files:
            twin = (
                finished.folder
                / "results/killed"
                / file.relative_to(finished.folder / "results/tiny")
            )
            assert twin.read_bytes() == file.read_bytes(), f"{file.name} differs"
    log = (finished.folder / "results/killed/logs/passes/main/0-of-1.log").read_text()
    assert f"{len(kept)} finished problems are kept" in log
