"""Published record files: what is refused, and how the message says so; what is left out."""

import gzip
import hashlib
import json
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from replay.analysis import analyze
from replay.config import ConfigError, load_study
from replay.published import (
    CONFIGURATIONS,
    DOWNLOADS,
    PublishedError,
    download,
    pooled,
    provenance,
    read,
    resolve,
    source,
    url,
)

ROOT = Path(__file__).parents[2]
PAPER = yaml.safe_load((ROOT / "config" / "catalog.yaml").read_text(encoding="utf-8"))["paper"]
OWN = ROOT / "docs" / "data" / "h200" / "gpu" / "records"
SETTINGS = {
    "model": "Some/Model", "problems": 2, "rollouts": 8, "temperature": 0.7, "top_p": 0.95, "k": 4,
    "margin_lt": 1.0, "boundary_slack": 2, "max_pivots_per_rollout": 5, "max_trunk_tokens": 512,
    "max_cont_tokens": 400, "cont_temp": None, "screen_mixed": False, "scan_start": 0,
}  # fmt: skip


def pivot(problem, position, exact1=0.25, instrumented=True):
    record = {
        "problem_id": problem, "rollout": 0, "abs_pos": position, "gen_index": 3, "margin": 0.5,
        "rollout_correct": 1, "A_exact1": exact1, "A_exact2": 0.0, "A_refeed": -0.5,
    }  # fmt: skip
    for name in ("exact2", "refeed"):
        record[f"greedy_divergence_{name}"] = False
        record[f"greedy_first_logprob_delta_{name}"] = 0.0
    if instrumented:
        record |= {"cache_ok_exact1": True, "cache_ok_exact2": True}
        for name in ("exact1", "exact2", "refeed"):
            record[f"greedy_first_{name}"] = {"actual": [7, -0.5], "alt": [8, 0.0]}
    return record


def content(*pivots, **settings):
    ids = sorted({p["problem_id"] for p in pivots})
    return {
        "experiment": "drift",
        "config": SETTINGS | settings,
        "per_problem": [
            {"problem_id": i, "pivots": 1, "rollout_accuracy": 0.5, "pass_seconds": [1, 1, 1]}
            for i in ids
        ],
        "pivots": list(pivots),
    }


def save(path, value):
    """Write a record file; return its sha256."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    path.write_bytes(raw)
    return hashlib.sha256(raw).hexdigest()


VALID = content(pivot(1, 16), pivot(1, 33), pivot(2, 16))


def test_valid_file(tmp_path):
    assert read(tmp_path / "r.json", save(tmp_path / "r.json", VALID)) == VALID


def test_the_first_campaign_lacks_the_cache_fields(tmp_path):
    value = content(pivot(1, 16, instrumented=False), pivot(2, 16, instrumented=False))
    del value["config"]["scan_start"]
    value["config"]["model"] = "hkust-nlp/Qwen-2.5-7B-SimpleRL-Zoo"
    sha256 = save(tmp_path / "r.json", value)
    assert read(tmp_path / "r.json", sha256, instrumented=False) == value
    with pytest.raises(PublishedError, match=r"record 0 \(.*\): 'cache_ok_exact1' is missing"):
        read(tmp_path / "r.json", sha256)
    assert pooled("grpo", [str(tmp_path / "r.json")], [sha256])["pivots"]
    with pytest.raises(PublishedError, match="'cache_ok_exact1' is missing"):
        pooled("phi", [str(tmp_path / "r.json")], [sha256])


def broken(path, value):
    """VALID with the value put at a path, or what is there removed if the value is a KeyError."""
    result = deepcopy(VALID)
    *parents, last = path
    target = result
    for key in parents:
        target = target[key]
    if value is KeyError:
        del target[last]
    else:
        target[last] = value
    return result


SECOND = r"record 1 \(problem_id 1, rollout 0, abs_pos 33\): "


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["pivots", 1, "A_refeed"], KeyError, SECOND + "'A_refeed' is a required property"),
        (["pivots", 1, "greedy_divergence_exact2"], KeyError, SECOND + "'greedy_divergence_exact2"),
        (["pivots", 1, "cache_ok_exact1"], KeyError, SECOND + "'cache_ok_exact1' is missing"),
        (["pivots", 1, "greedy_first_refeed"], KeyError, SECOND + "'greedy_first_refeed' is miss"),
        (["pivots", 1, "abs_pos"], KeyError, r"record 1 \(problem_id 1, rollout 0\): 'abs_pos'"),
        (["pivots", 1, "A_exact1"], float("nan"), SECOND + "A_exact1: nan is not of type 'number'"),
        (["pivots", 1, "margin"], float("inf"), SECOND + "margin: inf is not of type 'number'"),
        (["pivots", 1, "margin"], None, SECOND + "margin: None is not of type 'number'"),
        (["pivots", 1, "A_exact1"], "0.5", SECOND + "A_exact1: '0.5' is not of type 'number'"),
        (["pivots", 1, "A_exact1"], True, SECOND + "A_exact1: True is not of type 'number'"),
        (
            ["pivots", 1, "greedy_first_logprob_delta_refeed"],
            float("nan"),
            SECOND + "greedy_first_logprob_delta_refeed: nan",
        ),
        (
            ["pivots", 1, "greedy_first_refeed", "alt", 1],
            float("nan"),
            SECOND + "greedy_first_refeed: alt: 1: nan",
        ),
        (["pivots", 1, "A_exact1"], 0.3, SECOND + r"A_exact1 = 0.3 is not a multiple of 1/4"),
        (["pivots", 1, "A_exact2"], 1.25, SECOND + r"A_exact2 = 1.25 is not a multiple of 1/4"),
        (["pivots", 1, "abs_pos"], 16, r"record 1 \(.*abs_pos 16\): occurs twice"),
        (["pivots", 1], None, r"record 1 \(\): None is not of type 'object'"),
        (["pivots"], [], "pivots: is empty"),
        (["pivots"], KeyError, "'pivots' is a required property"),
        (["config", "k"], KeyError, "config: 'k' is a required property"),
        (["config", "k"], 0, "config: k: 0 is less than the minimum"),
        (["config", "k"], 3, r"record 0 \(.*\): A_exact1 = 0.25 is not a multiple of 1/3"),
        (["per_problem", 0, "rollout_accuracy"], KeyError, r"per_problem 0 \(problem_id 1\): '"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pinned", [True, False], ids=["right sum", "wrong sum"])
def test_a_fault_names_file_and_record(tmp_path, path, value, message, pinned):
    file = tmp_path / "campaign2_k8.json"
    sha256 = save(file, broken(path, value))
    with pytest.raises(PublishedError, match=rf"campaign2_k8\.json: {message}") as error:
        read(file, sha256 if pinned else "0" * 64)
    assert ("not the pinned" in str(error.value)) != pinned
    assert ("replace it by the published file" in str(error.value)) != pinned


def test_truncated_json_names_the_file(tmp_path):
    sha256 = save(tmp_path / "r.json", json.dumps(VALID).encode()[:-40])
    with pytest.raises(PublishedError, match=r"r\.json: not valid JSON"):
        read(tmp_path / "r.json", sha256)


def test_a_list_is_no_record_file(tmp_path):
    with pytest.raises(PublishedError, match=r"r\.json: \[\] is not of type 'object'"):
        read(tmp_path / "r.json", save(tmp_path / "r.json", []))


def test_wrong_sum_names_the_file_and_both_sums(tmp_path):
    found = save(tmp_path / "r.json", VALID)
    with pytest.raises(PublishedError, match=rf"r\.json has sha256 {found}, not the pinned 0000"):
        read(tmp_path / "r.json", "0" * 64)


def test_download(tmp_path):
    address = (tmp_path / "there.json").as_uri()
    sha256 = save(tmp_path / "there.json", VALID)
    target = tmp_path / "resources" / "here.json"
    with pytest.raises(PublishedError, match=rf"here\.json: file:.*sha256 {sha256}, not the"):
        download(address, "0" * 64, target)
    assert not target.exists() and not target.parent.exists()
    download(address, sha256, target)
    assert json.loads(target.read_bytes()) == VALID


def test_a_failed_download_says_what_to_do(tmp_path):
    with pytest.raises(PublishedError, match=r"x\.json: .*cannot be downloaded.*records_dir"):
        download((tmp_path / "none.json").as_uri(), "0" * 64, tmp_path / "x.json")


def test_address_is_at_the_pinned_commit():
    assert url(PAPER, "campaign1_temp0").endswith(
        "/thaw-ai/thaw/9a9ebf55377fcecb9c3832613011aa2189db1bc6/benchmarks/results/"
        "2026-06-10_drift_ablation/temp0.json"
    )


def test_pins_are_the_published_sums(shared):
    lines = (shared / "published" / "SHA256SUMS").read_text().splitlines()
    published = {tuple(reversed(line.split())) for line in lines}
    pins = {(entry["path"], entry["sha256"]) for entry in PAPER["records"].values()}
    local = {(f"{name}.json", entry["sha256"]) for name, entry in PAPER["records"].items()}
    assert pins <= published <= pins | local and len(pins) == 8
    assert {f for c in CONFIGURATIONS.values() for f in c.files} == set(PAPER["records"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def settings(folder=None, download=False):
    return {"records_dir": folder and str(folder), "download": download}


def test_a_local_file_goes_before_a_download(folder):
    assert source(settings(folder, True), "campaign2_k8") == DOWNLOADS / "campaign2_k8.json"
    (folder / "campaign2_k8.json").touch()
    assert source(settings(folder, True), "campaign2_k8") == folder / "campaign2_k8.json"
    assert source(settings(folder), "campaign2_phi") is None
    assert source(settings(), "campaign2_k8") is None
    DOWNLOADS.mkdir(parents=True)
    (DOWNLOADS / "campaign2_k8.json").touch()
    assert source(settings(), "campaign2_k8") == DOWNLOADS / "campaign2_k8.json"


def test_what_lacks_files_is_left_out(folder):
    for name in ("campaign2_primary", "campaign2_k8", "campaign1_grpo"):
        (folder / f"{name}.json").touch()
    present, absent = resolve(settings(folder))
    assert list(present) == ["k8", "grpo"]
    assert absent["main"] == ["campaign2_screened.json"]
    assert set(present) | set(absent) == set(CONFIGURATIONS)
    study = load_study({"run": "p", "published": settings(folder), "paper": PAPER})
    assert [row["name"] for row in study.rows] == ["k8", "grpo"]
    assert "main (campaign2_screened.json), k16 (campaign2_k16.json)" in study.note
    files = provenance(settings(folder), PAPER)["files"]
    assert [(f["name"], f["local"]) for f in files] == [
        ("campaign2_k8", True),
        ("campaign1_grpo", True),
    ]


def test_with_downloads_nothing_is_left_out():
    study = load_study({"run": "p", "published": {}, "paper": PAPER})
    assert list(study.configurations) == list(CONFIGURATIONS) and study.note == ""
    assert study.shards == [] and study.trunk_sets == {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"published": {"records_dir": "nowhere"}}, "published.records_dir: nowhere is not a fold"),
        ({"published": {"download": False}}, "published: no configuration has its record files"),
        ({"published": {"downlaod": False}}, "published.downlaod: unknown key; did you mean 'down"),
        ({"published": {"download": "no"}}, "published.download: 'no' is not true or false"),
        ({"published": None}, "published: None is not a mapping of keys to values"),
        (
            {"published": {}, "configurations": {"main": {"cohorts": ["c"]}}},
            "configurations: a run with the section 'published' takes none",
        ),
    ],
)
def test_a_config_that_cannot_be_run_names_the_key(folder, config, message):
    with pytest.raises(ConfigError, match=message):
        load_study({"run": "p", "paper": PAPER} | config)


def test_pooled_files_hold_every_pivot_once(tmp_path):
    files = {
        "campaign2_primary": VALID,
        "campaign2_screened": content(
            pivot(2, 16, exact1=1.0), pivot(3, 16), screen_mixed=True, scan_start=20
        ),
    }
    sums = [save(tmp_path / f"{name}.json", value) for name, value in files.items()]
    result = pooled("main", [str(tmp_path / f"{name}.json") for name in files], sums)
    assert [(p["problem_id"], p["abs_pos"], p["A_exact1"], p["cohort"]) for p in result["pivots"]] \
        == [
            (1, 16, 0.25, "campaign2_primary"),
            (1, 33, 0.25, "campaign2_primary"),
            (2, 16, 0.25, "campaign2_primary"),
            (3, 16, 0.25, "campaign2_screened"),
        ]  # fmt: skip
    sections = result["config"]["sections"]
    assert result["config"]["k"] == sections["continuations"]["k"] == 4
    assert sections["cohort"]["scan_start"] == [0, 20] and sections["cohort"]["problems"] == [2, 2]
    assert sections["continuations"]["temperature"] == sections["trunks"]["temperature"] == 0.7
    assert {name: result["config"][name] for name in ("rollouts", "cont_temp", "margin_lt")} == {
        "rollouts": 8, "cont_temp": None, "margin_lt": 1.0,
    }  # fmt: skip
    assert analyze(result["pivots"], 4)["n_records"] == 4


def test_pooled_files_share_their_settings(tmp_path):
    files = {"campaign2_primary": VALID, "campaign2_screened": content(pivot(3, 16), top_p=1.0)}
    sums = [save(tmp_path / f"{name}.json", value) for name, value in files.items()]
    message = r"primary\.json and campaign2_screened\.json: config\.top_p is 0\.95 and 1\.0"
    with pytest.raises(PublishedError, match=message):
        pooled("main", [str(tmp_path / f"{name}.json") for name in files], sums)


def own(folder, name, as_file, **settings):
    """Records that this workflow wrote, under the name of a published file; its path and sha256."""
    path = folder / f"{as_file}.json"
    value = json.loads(gzip.decompress((OWN / f"{name}.json.gz").read_bytes()))
    value["config"] |= settings
    return str(path), save(path, value)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("k8", {"campaign2_k8": "k8"}),
        ("greedy", {"campaign1_temp0": "greedy"}),
        ("batchinv", {"campaign2_batchinv": "batch-invariant"}),
        ("main", {"campaign2_primary": "main", "campaign2_screened": "main"}),
    ],
)
def test_own_records_stand_in_for_published_ones(tmp_path, name, files):
    cohorts = [{"cohorts": {"c": {"start": start}}, "problems": 2} for start in range(len(files))]
    given = [own(tmp_path, f, n, **c) for (n, f), c in zip(files.items(), cohorts, strict=True)]
    result = pooled(name, *map(list, zip(*given, strict=True)))
    record = json.loads(Path(given[0][0]).read_text())
    assert analyze(result["pivots"], result["config"]["k"]) == \
        analyze(record["pivots"], record["config"]["k"])  # fmt: skip
    assert result["config"].get("passes") == record["config"].get("passes")
    study = load_study({"run": "p", "published": settings(tmp_path), "paper": PAPER})
    (row,) = study.rows
    assert (row["name"], row["model"]) == (name, "smollm2-135m")


def test_own_and_published_records_of_one_model_are_pooled(tmp_path):
    path, sha256 = own(
        tmp_path,
        "main",
        "campaign2_primary",
        model="Qwen/Qwen2.5-7B-Instruct",
        max_trunk_tokens=512,
    )
    config = json.loads(Path(path).read_text())["config"]
    shared = {name: config[name] for name in SETTINGS if name in config}
    other = content(pivot(9001, 16), pivot(9002, 16), **shared)
    sums = [sha256, save(tmp_path / "campaign2_screened.json", other)]
    result = pooled("main", [path, str(tmp_path / "campaign2_screened.json")], sums)
    assert {9001, 9002} < {record["problem_id"] for record in result["pivots"]}
    # The published file has the three passes of the paper alone.
    assert "passes" not in result["config"] and "pass_order" not in result["config"]
    study = load_study({"run": "p", "published": settings(tmp_path), "paper": PAPER})
    assert study.rows[0]["model"] == "Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("name", "file", "changed", "message"),
    [
        ("k8", "main", {}, "config.k is 4, but configuration k8, 'K=8', has 8"),
        ("batchinv", "main", {}, "config.numerics is stock, but .* has batch-invariant"),
        ("main", "batch-invariant", {}, "config.numerics is batch-invariant, but .* has stock"),
        ("phi", "main", {}, "config.model is smollm2-135m, but .* has Phi-4-mini-instruct"),
        ("grpo", "main", {}, "config.model is smollm2-135m, but .* has SimpleRL-Zoo-7B"),
        ("phi", "main", {"model": "phi-4-mini-instruct"}, None),
        ("grpo", "main", {"model": "qwen2.5-7b-simplerl-zoo"}, None),
    ],
)
def test_records_that_are_not_what_the_label_says_are_refused(
    tmp_path, name, file, changed, message
):
    given = [own(tmp_path, file, n, **changed) for n in CONFIGURATIONS[name].files]
    files, sums = map(list, zip(*given, strict=True))
    if message is None:
        assert pooled(name, files, sums)["pivots"]
    else:
        with pytest.raises(PublishedError, match=rf"{files[0]}: {message}"):
            pooled(name, files, sums)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_the_published_files_state_is_what_the_labels_say(shared, name):
    files = [shared / "published" / f"{file}.json" for file in CONFIGURATIONS[name].files]
    if not all(file.is_file() for file in files):
        pytest.skip(f"{name}: a file is not among the reference material")
    sums = [PAPER["records"][file.stem]["sha256"] for file in files]
    assert pooled(name, list(map(str, files)), sums)["pivots"]
    present, _ = resolve(settings(shared / "published"))
    assert present[name] == CONFIGURATIONS[name]


def test_greedy_continuations_have_a_temperature_of_their_own(tmp_path):
    greedy = content(pivot(1, 16, exact1=1.0), k=1, cont_temp=0.0)
    greedy["pivots"][0]["A_refeed"] = 0.0
    sha256 = save(tmp_path / "g.json", greedy)
    sections = pooled("greedy", [str(tmp_path / "g.json")], [sha256])["config"]["sections"]
    assert sections["continuations"] == {
        "k": 1, "temperature": 0.0, "top_p": 0.95, "max_tokens": 400,
    }  # fmt: skip
    assert sections["trunks"]["temperature"] == 0.7


@pytest.mark.parametrize("name", sorted(PAPER["records"]))
def test_the_published_files_pass(shared, name):
    file = shared / "published" / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"{name}.json is not among the reference material")
    sha256 = PAPER["records"][name]["sha256"]
    assert read(file, sha256, instrumented=name.startswith("campaign2"))["pivots"]
