"""What is registered is locked before the data, and nothing else is called registered."""

import copy
from datetime import UTC, datetime

import pytest
import yaml

from replay import registration
from replay.config import load_schema
from replay.provenance import commit_date, git_state
from replay.registration import (
    RegistrationError,
    assess,
    began,
    engine_sidecars,
    load,
    lock,
    lock_path,
    read_lock,
    stated,
    statement,
    verdict,
)
from replay.storage import read_json, sha256_file, write_json

REGISTRATION = load()
SECTIONS = copy.deepcopy(REGISTRATION["settings"])
CODE = {rule: rule[0] * 64 for rule in registration.VERDICT_RULES}
LATER = "9999-01-01T00:00:00.000+00:00"
EARLIER = "2000-01-01T00:00:00.000+00:00"


@pytest.fixture
def locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clean = {"commit": "c" * 40, "dirty": False}
    monkeypatch.setattr(registration, "git_state", lambda: clean)
    content, is_new = lock(REGISTRATION, CODE)
    assert is_new
    return content


def changed(section, **settings):
    return SECTIONS | {section: SECTIONS[section] | settings}


def test_the_registration_holds_the_papers_settings_which_are_the_defaults():
    sections = load_schema()["$defs"]
    for section, settings in REGISTRATION["settings"].items():
        for name, value in settings.items():
            default = sections[section]["properties"][name]
            default = sections["grader"] if "$ref" in default else default
            assert value == default["default"], (section, name)
    assert REGISTRATION["decision"] == {"material_above_pct": 5, "negligible_below_pct": 2}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda r: r["settings"]["continuations"].update(k=8), "its line `digest` says"),
        (lambda r: r["decision"].update(material_above_pct=50), "its line `digest` says"),
        (lambda r: r["decision"].update(material_above_pct=1), "is above"),
        (lambda r: r.pop("decision"), "'decision' is a required property"),
        (lambda r: r.update(settings={}), "settings: 'trunks' is a required property"),
        (lambda r: r.update(settings=[1]), "settings: .* is not of type 'object'"),
        (lambda r: r["settings"]["trunks"].pop("top_p"), "settings.trunks: 'top_p' is a required"),
        (lambda r: r["settings"]["pivots"].update(margins=1), "settings.pivots: Additional"),
        (lambda r: r["decision"].update(material_above_pct="5"), "is not of type 'number'"),
        (lambda r: r["decision"].update(negligible_below_pct=None), "is not of type 'number'"),
    ],
)
def test_a_registration_that_was_bent_is_refused(tmp_path, edit, said):
    path = tmp_path / "registration.yaml"
    content = yaml.safe_load(registration.PATH.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(RegistrationError, match=said):
        load(path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"settings: [", b""])
def test_a_file_that_is_no_registration_is_one_error(tmp_path, content):
    path = tmp_path / "registration.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RegistrationError, match=r"^registration\.yaml"):
        load(path)


def test_a_lock_is_written_once(locked):
    again, is_new = lock(REGISTRATION, CODE)
    assert not is_new and again == locked
    assert {"time", "commit", "dirty", "sha256", "registration"} <= locked.keys()


@pytest.mark.parametrize("name", ["time", "commit", "registration", "sha256", "format"])
def test_an_edited_lock_is_refused(locked, name):
    path = lock_path(REGISTRATION)
    write_json(path, read_json(path) | {name: EARLIER})
    with pytest.raises(RegistrationError, match="this lock was edited"):
        read_lock(path)


def test_registered_takes_the_settings_and_a_lock_before_the_data(locked):
    assert statement(REGISTRATION, locked, SECTIONS, LATER, CODE) == {
        "state": "registered",
        "deviations": [],
    }


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (changed("continuations", k=8), "continuations.k: registered 4, here 8"),
        (changed("trunks", temperature=0), "trunks.temperature: registered 0.7, here 0"),
        (changed("pivots", ranking="published"), 'registered "text", here "published"'),
        (changed("grading", scope="continuation"), "grading.scope: registered null, here"),
        ({k: v for k, v in SECTIONS.items() if k != "grading"}, "grading.grader: registered"),
    ],
)
def test_every_setting_that_deviates_is_listed_with_both_values(locked, sections, said):
    found = statement(REGISTRATION, locked, sections, LATER, CODE)
    assert found["state"] == "deviates" and said in found["deviations"][0]


def test_settings_that_are_not_locked_may_be_anything(locked):
    sections = SECTIONS | {"engine": {"device": "cpu"}}
    sections["trunks"] = SECTIONS["trunks"] | {"logprobs": 20}
    assert statement(REGISTRATION, locked, sections, LATER, CODE)["state"] == "registered"


def test_data_generated_before_the_lock_are_never_registered(locked):
    for first in (EARLIER, locked["time"]):
        found = statement(REGISTRATION, locked, SECTIONS, first, CODE)
        assert found == {"state": "deviates", "deviations": ["data: generated before the lock"]}
    assert statement(REGISTRATION, locked, SECTIONS, None, CODE)["state"] == "deviates"
    assert statement(REGISTRATION, None, SECTIONS, LATER, CODE)["state"] == "deviates"


def test_a_lock_of_another_registration_does_not_count(locked):
    other = locked | {"registration": REGISTRATION | {"digest": "0" * 64}}
    (said,) = statement(REGISTRATION, other, SECTIONS, LATER, CODE)["deviations"]
    assert said == "lock: it is of another registration"


RUN = "results/run"


def engine_job(name, began):
    """The output of an engine job and its log, with the sidecar that the job left."""
    output = f"{RUN}/{name}"
    write_json(f"{RUN}/provenance/{name}.json", {"outputs": {output: {}}, "began": began})
    return {output: f"{RUN}/logs/{name}.log"}


@pytest.mark.parametrize("rule", registration.VERDICT_RULES)
def test_code_that_is_not_the_locks_deviates(locked, rule):
    (said,) = statement(REGISTRATION, locked, SECTIONS, LATER, CODE | {rule: "0"})["deviations"]
    assert said == f"code of {rule}: it is not that of the lock"


def test_a_lock_of_a_modified_checkout_deviates(locked):
    found = statement(REGISTRATION, locked | {"dirty": True}, SECTIONS, LATER, CODE)
    assert found["deviations"] == ["lock: written from a modified checkout"]


def test_a_lock_that_is_older_than_its_commit_is_refused(locked, monkeypatch):
    monkeypatch.setattr(registration, "commit_date", lambda commit: "2000-01-01T00:00:00+02:00")
    read_lock(lock_path(REGISTRATION))
    monkeypatch.setattr(registration, "commit_date", lambda commit: "9999-01-01T00:00:00+02:00")
    with pytest.raises(RegistrationError, match="before its commit was made"):
        read_lock(lock_path(REGISTRATION))


def test_the_date_of_a_commit_is_gits_where_it_is_known():
    assert commit_date("0" * 40) is None and commit_date(None) is None
    if head := git_state()["commit"]:
        assert datetime.fromisoformat(commit_date(head)) < datetime.now(UTC)


def test_the_sidecars_that_dated_the_data_are_kept_for_the_audit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = {"main": engine_job("passes/b", EARLIER)}
    path = f"{RUN}/provenance/passes/b.json"
    assert engine_sidecars(jobs) == {path: {"began": EARLIER, "sha256": sha256_file(path)}}


def test_the_first_of_all_jobs_counts_and_every_one_must_be_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = engine_job("trunks/a", "2026-01-02") | engine_job("passes/b", "2026-01-01")
    assert began(jobs) == "2026-01-01"
    assert began(jobs | {f"{RUN}/passes/c": f"{RUN}/logs/passes/c.log"}) is None
    assert began(jobs | {f"{RUN}/passes/c": f"{RUN}/logs/passes/b.log"}) is None
    assert began({}) is None


def test_a_file_that_is_no_jobs_sidecar_dates_nothing(locked):
    jobs = engine_job("trunks/a", EARLIER) | engine_job("passes/b", LATER)
    write_json(f"{RUN}/provenance/zz.json", {"outputs": dict.fromkeys(jobs, {}), "began": LATER})
    assert began(jobs) == EARLIER


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (0.0501, "material: 5.0% is above 5%"),
        (0.05, "between: 5.0% is from 2% to 5%"),
        (0.02, "between: 2.0% is from 2% to 5%"),
        (0.0199, "negligible: 2.0% is below 2%"),
        (0.0, "negligible: 0.0% is below 2%"),
    ],
)
def test_the_decision_rule(rate, said):
    found = verdict(REGISTRATION["decision"], of_rate(rate, 0.01))
    counts = "eligible pivots: 20, problems with such: 3"
    assert found == f"{said} (the replica floor is 1.0%; {counts})"


def test_without_an_eligible_pivot_nothing_is_decided():
    analysis = of_rate(None, None)
    assert verdict(REGISTRATION["decision"], analysis) == "undecided: no pivot is eligible"


def of_rate(refeed, floor):
    common = {"refeed": {"flip_rate": refeed, "n": 20}, "floor": {"flip_rate": floor}}
    return {"common_set": common, "clustered": {"n_problems": 3}}


def test_a_run_is_assessed_configuration_by_configuration(locked):
    for name, k in (("main", 4), ("k8", 8)):
        sections = changed("continuations", k=k)
        write_json(f"results/run/records/{name}.json", {"config": {"sections": sections}})
        write_json(f"results/run/analysis/{name}.json", of_rate(0.5, 0.1))
    found = assess(
        REGISTRATION,
        str(lock_path(REGISTRATION)),
        {name: engine_job(f"passes/{name}", LATER) for name in ("main", "k8")},
        [f"results/run/records/{name}.json" for name in ("main", "k8")],
        [f"results/run/analysis/{name}.json" for name in ("main", "k8")],
        CODE,
    )
    statements = found["configurations"]
    assert {name: of["state"] for name, of in statements.items()} == {
        "main": "registered",
        "k8": "deviates",
    }
    assert stated("main", statements["main"]) == "Registration, main: registered"
    assert stated("k8", statements["k8"]).endswith(
        "deviates in continuations.k: registered 4, here 8"
    )
    assert found["lock"]["sha256"] == locked["sha256"]
