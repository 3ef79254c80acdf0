"""What is registered is locked before the data, and nothing else is called registered."""

import copy

import pytest
import yaml

from replay import registration
from replay.config import load_schema
from replay.provenance import FORMAT
from replay.registration import (
    RegistrationError,
    assess,
    began,
    load,
    lock,
    lock_path,
    read_lock,
    stated,
    statement,
    verdict,
)
from replay.storage import read_json, write_json

REGISTRATION = load()
SECTIONS = copy.deepcopy(REGISTRATION["settings"])
LATER = "9999-01-01T00:00:00.000+00:00"
EARLIER = "2000-01-01T00:00:00.000+00:00"


@pytest.fixture
def locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, is_new = lock(REGISTRATION)
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
        (lambda r: r.pop("decision"), "it takes settings, decision and digest"),
    ],
)
def test_a_registration_that_was_bent_is_refused(tmp_path, edit, said):
    path = tmp_path / "registration.yaml"
    content = yaml.safe_load(registration.PATH.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(RegistrationError, match=said):
        load(path)


def test_a_lock_is_written_once(locked):
    again, is_new = lock(REGISTRATION)
    assert not is_new and again == locked
    assert {"time", "commit", "dirty", "sha256", "registration"} <= locked.keys()


@pytest.mark.parametrize("name", ["time", "commit", "registration", "sha256", "format"])
def test_an_edited_lock_is_refused(locked, name):
    path = lock_path(REGISTRATION)
    write_json(path, read_json(path) | {name: EARLIER})
    with pytest.raises(RegistrationError, match="this lock was edited"):
        read_lock(path)


def test_registered_takes_the_settings_and_a_lock_before_the_data(locked):
    assert statement(REGISTRATION, locked, SECTIONS, LATER) == {
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
    found = statement(REGISTRATION, locked, sections, LATER)
    assert found["state"] == "deviates" and said in found["deviations"][0]


def test_settings_that_are_not_locked_may_be_anything(locked):
    sections = SECTIONS | {"engine": {"device": "cpu"}}
    sections["trunks"] = SECTIONS["trunks"] | {"logprobs": 20}
    assert statement(REGISTRATION, locked, sections, LATER)["state"] == "registered"


def test_data_generated_before_the_lock_are_never_registered(locked):
    for first in (EARLIER, locked["time"]):
        found = statement(REGISTRATION, locked, SECTIONS, first)
        assert found == {"state": "deviates", "deviations": ["data: generated before the lock"]}
    assert statement(REGISTRATION, locked, SECTIONS, None)["state"] == "deviates"
    assert statement(REGISTRATION, None, SECTIONS, LATER)["state"] == "deviates"


def test_a_lock_of_another_registration_does_not_count(locked):
    other = locked | {"registration": REGISTRATION | {"digest": "0" * 64}}
    (said,) = statement(REGISTRATION, other, SECTIONS, LATER)["deviations"]
    assert said == "lock: it is of another registration"


def test_the_first_of_all_jobs_counts_and_every_one_must_be_known():
    sidecars = [
        {"outputs": {"trunks/a": {}}, "began": "2026-01-02"},
        {"outputs": {"passes/b": {}}, "began": "2026-01-01"},
    ]
    assert began(["trunks/a", "passes/b"], sidecars) == "2026-01-01"
    assert began(["trunks/a", "passes/c"], sidecars) is None
    assert began([], sidecars) is None


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
    analysis = {"common_set": {"refeed": {"flip_rate": rate}, "floor": {"flip_rate": 0.01}}}
    found = verdict(REGISTRATION["decision"], analysis)
    assert found == f"{said} (the replica floor is 1.0%)"


def test_without_an_eligible_pivot_nothing_is_decided():
    analysis = {"common_set": {"refeed": {"flip_rate": None}, "floor": {"flip_rate": None}}}
    assert verdict(REGISTRATION["decision"], analysis) == "undecided: no pivot is eligible"


def test_a_run_is_assessed_configuration_by_configuration(locked):
    rates = {"refeed": {"flip_rate": 0.5}, "floor": {"flip_rate": 0.1}}
    for name, k in (("main", 4), ("k8", 8)):
        sections = changed("continuations", k=k)
        write_json(f"results/run/records/{name}.json", {"config": {"sections": sections}})
        write_json(f"results/run/analysis/{name}.json", {"common_set": rates})
        sidecar = {"format": FORMAT, "rule": "passes", "params": {}, "sources": {}, "inputs": {}}
        sidecar |= {"outputs": {f"results/run/passes/{name}": {}}, "began": LATER}
        write_json(f"results/run/provenance/passes/{name}.json", sidecar)
    found = assess(
        REGISTRATION,
        str(lock_path(REGISTRATION)),
        {name: [f"results/run/passes/{name}"] for name in ("main", "k8")},
        [f"results/run/records/{name}.json" for name in ("main", "k8")],
        [f"results/run/analysis/{name}.json" for name in ("main", "k8")],
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
