"""Target `published`: its DAG by dry runs, and the whole run on the record files at hand."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from crates import problems

FILES = (
    "campaign2_primary", "campaign2_screened", "campaign2_k8", "campaign2_k16", "campaign2_phi",
    "campaign2_batchinv", "campaign1_temp0", "campaign1_grpo",
)  # fmt: skip


class Folder:
    """A working folder; the workflow itself is used where it lies."""

    def __init__(self, root: Path, path: Path):
        self.root, self.path = root, path

    def snakemake(self, *arguments: str, ok: bool = True, **published) -> str:
        config = self.path / "published.yaml"
        config.write_text(yaml.safe_dump({"run": "published", "published": published}))
        result = subprocess.run(
            [
                sys.executable, "-m", "snakemake", "--snakefile", str(self.root / "Snakefile"),
                "--workflow-profile", str(self.root / "profiles" / "default"), "--cores", "1",
                *arguments, "--configfile", str(config),
            ],
            cwd=self.path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        output = result.stdout + result.stderr
        assert (result.returncode == 0) == ok, output
        return output

    def planned(self, *arguments: str, **published) -> dict[str, int]:
        output = self.snakemake("-n", *arguments, **published)
        table = output.split("Job stats:")[1].split("\n\n")[0]
        return {rule: int(n) for rule, n in re.findall(r"^(\w+)\s+(\d+)$", table, flags=re.M)}


@pytest.fixture
def folder(root, tmp_path) -> Folder:
    return Folder(root, tmp_path)


def local(folder: Folder, *names: str) -> str:
    records = folder.path / "records"
    records.mkdir(exist_ok=True)
    for name in names:
        (records / f"{name}.json").write_text("{}")
    return str(records)


def test_everything_is_downloaded_and_no_engine_runs(folder):
    assert folder.planned("published") == {
        "download": 8, "published_records": 7, "analyze": 7, "claims": 1, "table": 1, "figures": 1,
        "statistics": 1, "browser": 7, "decomposition": 1, "registration": 1, "rule_graph": 1,
        "report": 1, "published": 1, "total": 38,
    }  # fmt: skip


def test_local_files_are_not_downloaded(folder):
    planned = folder.planned("published", records_dir=local(folder, *FILES[1:]))
    assert planned["download"] == 1 and planned["published_records"] == 7
    planned = folder.planned("published", records_dir=local(folder, *FILES), download=False)
    assert "download" not in planned and planned["analyze"] == 7


def test_without_download_absent_files_leave_out_their_configurations(folder):
    records = local(folder, "campaign2_primary", "campaign2_k8", "campaign1_temp0")
    planned = folder.planned("published", records_dir=records, download=False)
    assert planned["published_records"] == planned["analyze"] == 2


def test_a_configuration_is_a_target_of_its_own(folder):
    planned = folder.planned("main")
    assert (planned["download"], planned["published_records"], planned["analyze"]) == (2, 1, 1)
    assert not {"claims", "table", "report"} & set(planned)


def test_no_record_file_at_all_is_an_error(folder):
    output = folder.snakemake("-n", "published", ok=False, download=False)
    assert "published: no configuration has its record files" in output


def test_a_wrong_file_ends_the_run_and_is_named(folder):
    records = local(folder, "campaign1_temp0")
    output = folder.snakemake("greedy", ok=False, records_dir=records, download=False)
    assert re.search(r"error: .*campaign1_temp0\.json: 'experiment' is a required", output)
    assert not (folder.path / "results/published/records/greedy.json").exists()


@pytest.fixture(scope="module")
def finished(root, shared, tmp_path_factory) -> tuple[Folder, str]:
    """A run on copies of the record files at hand, without the network."""
    folder = Folder(root, tmp_path_factory.mktemp("published"))
    shutil.copytree(shared / "published", folder.path / "records")
    output = folder.snakemake("published", records_dir="records", download=False)
    return folder, output


def test_everything_that_is_promised_is_there(finished):
    folder, output = finished
    results = folder.path / "results" / "published"
    table = pd.read_csv(results / "tables" / "table1.csv")
    names = list(table["configuration"])
    assert {"main", "greedy", "batchinv"} <= set(names)
    assert sorted(p.stem for p in (results / "analysis").glob("*.json")) == sorted(names)
    parts = pd.read_csv(results / "tables" / "table2.csv")
    assert list(parts["configuration"]) == names and parts["state_pct"].isna().all()
    assert set(parts["note"]) == {"not applicable: no prefill_warm pass"}
    assert parts["refeed_pct"].tolist() == pytest.approx(table["refeed_pct"].tolist(), abs=1e-5)
    for number in (1, 2, 3, 4, 5):
        assert (results / "figures" / f"figure{number}.png").read_bytes()[:4] == b"\x89PNG"
        assert (results / "figures" / f"figure{number}.pdf").read_bytes()[:4] == b"%PDF"
        assert len(pd.read_csv(results / "figures" / f"figure{number}.csv"))
    claims = pd.read_csv(results / "claims.csv", dtype=str, keep_default_na=False)
    assert list(claims.columns) == [
        "id", "section", "quantity", "claimed", "recomputed", "verdict",
    ]  # fmt: skip
    assert set(claims["verdict"]) <= {"match", "differs", "not derivable"}
    main = claims[claims["id"].str.startswith("table1.main.")]
    assert len(main) == 10 and set(main["verdict"]) == {"match"}
    analysis = json.loads((results / "analysis" / "main.json").read_text())
    assert analysis["common_set"]["refeed"]["n"] == 636


def test_what_is_left_out_is_named_everywhere(finished):
    folder, output = finished
    results = folder.path / "results" / "published"
    absent = [f for f in FILES if not (folder.path / "records" / f"{f}.json").is_file()]
    if not absent:
        pytest.skip("all eight record files are at hand")
    page = (results / "report" / "index.html").read_text()
    markdown = (results / "tables" / "table1.md").read_text()
    log = (results / "logs" / "table.log").read_text()
    for name in absent:
        for text in (output, page, markdown, log, (results / "claims.csv").read_text()):
            assert f"{name}.json" in text


def test_the_page_speaks_of_records_and_not_of_an_engine(finished):
    folder, _ = finished
    page = (folder.path / "results/published/report/index.html").read_text()
    assert "No engine ran for this page" in page and "thaw-ai/thaw" in page
    assert "The texts of these records are not stored" in page
    assert "claim by claim" in page and "<h2>Engine</h2>" not in page
    assert "Cohorts and screening" not in page
    assert ">None<" not in page and ">nan<" not in page.lower()


def test_a_study_can_be_planned_from_the_published_records(finished):
    folder, _ = finished
    folder.snakemake("plan", records_dir="records", download=False)
    plan = pd.read_csv(folder.path / "results/published/tables/plan.csv")
    at_k4 = plan[(plan["k"] == 4) & (plan["problems"] == 40)].iloc[0]
    # What the paper's main configuration, 40 problems at K=4, could detect and sent.
    assert (at_k4["sd_from"], round(at_k4["detectable_excess_pp"], 1)) == ("main", 8.7)
    assert round(at_k4["replica_jaccard"], 2) == 0.84
    assert at_k4["requests"] == 40 * 8 + 1567 * 3 * 2 * 5


def test_a_second_run_has_nothing_to_do(finished):
    folder, _ = finished
    output = folder.snakemake("published", records_dir="records", download=False)
    assert "Nothing to be done" in output


def test_a_published_run_is_audited_and_described(finished):
    """The records were there before any lock, so they are never called registered."""
    folder, _ = finished
    local = {"records_dir": "records", "download": False}
    results = folder.path / "results" / "published"
    assert "changed by hand" not in folder.snakemake("audit", **local)
    folder.snakemake("crate", **local)
    assert problems(results) == []
    table = pd.read_csv(results / "tables" / "table1.csv")
    assert set(table["registration"]) == {"deviates"}
    markdown = (results / "tables" / "table1.md").read_text(encoding="utf-8")
    assert "data: when they were generated is not on record" in markdown
    folder.snakemake("register", **local)
    folder.snakemake("published", **local)
    registration = json.loads((results / "registration.json").read_text())
    (lock,) = (folder.path / "registration").glob("*.json")
    assert registration["lock"]["sha256"] == json.loads(lock.read_text())["sha256"]
    assert {of["state"] for of in registration["configurations"].values()} == {"deviates"}
    record, main = results / "records" / "main.json", "results/published/records/main.json"
    original = record.read_bytes()
    record.write_bytes(original.replace(b'"margin": 0.', b'"margin": 0.1', 1))
    source = folder.path / "records" / "campaign1_temp0.json"
    kept = source.read_bytes()
    source.write_bytes(kept + b" ")
    try:
        output = folder.snakemake("audit", ok=False, **local)
    finally:
        record.write_bytes(original)
        source.write_bytes(kept)
    assert f"changed by hand: {main}" in output
    assert "stale: results/published/records/greedy.json was made from another records/" in output


def test_a_changed_file_is_refused(finished):
    folder, _ = finished
    file = folder.path / "records" / "campaign2_batchinv.json"
    original = file.read_bytes()
    content = json.loads(original)
    content["pivots"][3]["A_refeed"] = float("nan")
    file.write_text(json.dumps(content))
    try:
        output = folder.snakemake("published", ok=False, records_dir="records", download=False)
    finally:
        file.write_bytes(original)
    key = ", ".join(f"{n} {content['pivots'][3][n]}" for n in ("problem_id", "rollout", "abs_pos"))
    assert f"campaign2_batchinv.json: record 3 ({key}): A_refeed: nan is not" in output
    assert hashlib.sha256(original).hexdigest() in output, "the pinned sum is named too"
