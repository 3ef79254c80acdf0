"""The code digest sees what a rule uses, and only that."""

import re
from pathlib import Path

import pytest

from replay import code

ROOT = Path(__file__).parents[2]


def modules(script):
    return {path.stem for path in code.files_used(script) if path.parent.name == "replay"}


def test_reaches_modules_that_modules_import_also_inside_functions():
    assert {"engine", "scheduler", "kv_state", "pivots", "storage"} <= modules("passes")


def test_reaches_what_vllm_is_told_by_name():
    assert "worker" in modules("passes") & modules("trunks") & modules("screen")


def test_what_is_not_used_is_not_in_it():
    assert not {"figures", "report", "grading", "analysis"} & modules("passes")
    assert not {"engine", "kv_state", "scheduler"} & (modules("grade") | modules("records"))


def test_changes_with_a_helper_module_and_with_data(tmp_path, monkeypatch):
    package = tmp_path / "replay"
    package.mkdir()
    (tmp_path / "job.py").write_text("from replay.helper import f\n")
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("def f(): return 1\n")
    (package / "unused.py").write_text("x = 1\n")
    template = tmp_path / "page.j2"
    template.write_text("old")
    monkeypatch.setattr(code, "SCRIPTS", tmp_path)
    before = code.code_digest("job"), code.code_digest("job", [template])
    (package / "unused.py").write_text("x = 2\n")
    assert (code.code_digest("job"), code.code_digest("job", [template])) == before
    template.write_text("new")
    assert code.code_digest("job", [template]) != before[1]
    (package / "helper.py").write_text("def f(): return 2\n")
    assert code.code_digest("job") != before[0]


@pytest.mark.parametrize(
    "rules", sorted((ROOT / "workflow" / "rules").glob("*.smk")), ids=lambda p: p.name
)
def test_every_script_rule_tracks_its_own_code(rules):
    text = rules.read_text(encoding="utf-8")
    scripts = re.findall(r'script:\s+"\.\./scripts/(\w+)\.py"', text)
    assert scripts == re.findall(r'code_digest\(\s*"(\w+)"', text)


def test_no_pickle_is_read_and_no_foreign_code_is_run():
    unsafe = re.compile(
        r"import pickle|pickle\.load|torch\.load|read_pickle|allow_pickle|joblib|trust_remote_code"
        r"|yaml\.load\(|\beval\(|\bexec\("
    )
    files = [*code.SCRIPTS.rglob("*.py"), *(ROOT / "workflow" / "rules").glob("*.smk")]
    assert len(files) > 40
    assert [file for file in files if unsafe.search(file.read_text(encoding="utf-8"))] == []
