"""What holds of every rule of the workflow, of the schema and of the repository's own files."""

import re
from pathlib import Path

import pytest
import yaml
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, ResourceSettings
from test_locks import LOCKED

from replay.code import files_used
from replay.config import ConfigError, load_schema, read_config

ROOT = Path(__file__).parents[2]
CONFIGS = ["config.yaml", "paper.yaml", "published.yaml", "gpu.yaml", "examples/yes-no.yaml"]
ENGINE_ENVS = {"../../envs/engine-cpu.yaml", "../../envs/engine-cuda.yaml"}
ENGINE_RULES = {"check_invariance", "screen", "trunks", "passes"}


def workflow(config):
    """The parsed workflow under one configuration file."""
    with SnakemakeApi() as api:
        settings = ConfigSettings(configfiles=[ROOT / "config" / config])
        resources = ResourceSettings(cores=1)
        return api.workflow(
            resource_settings=resources, config_settings=settings, snakefile=ROOT / "Snakefile"
        )._workflow


@pytest.fixture(scope="module", params=CONFIGS)
def parsed(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # where the local paths of a configuration start
        yield workflow(request.param)


@pytest.fixture
def running(parsed):
    """Rules that run something; the others only name what to bring up to date."""
    return [rule for rule in parsed.rules if not rule.norun]


def is_engine(rule):
    return "engine" in {path.stem for path in files_used(Path(rule.script).stem)}


def test_the_default_target_is_all(parsed):
    assert parsed.default_target == "all"


def test_a_configuration_is_read_as_snakemake_reads_it(tmp_path):
    """Entries of the catalog are joined key by key."""
    path = tmp_path / "own.yaml"
    other = {"models": {"smollm2-135m": {"sha256": "0" * 64}}}
    own = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(own | other))
    config = read_config(path)
    assert config == workflow(path).config
    model = read_config(ROOT / "config" / "config.yaml")["models"]["smollm2-135m"]
    assert config["models"]["smollm2-135m"] == model | other["models"]["smollm2-135m"]


@pytest.mark.parametrize("content", ["run: [", "- run"])
def test_a_configuration_that_is_none_is_named(tmp_path, content):
    (tmp_path / "own.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"own\.yaml: Config file"):
        read_config(tmp_path / "own.yaml")


def test_rules_that_run_nothing_are_targets(parsed):
    for rule in parsed.rules:
        if rule.norun:
            assert rule.input and not rule.output and not rule.log


def test_every_rule_has_a_log_with_the_wildcards_of_its_output(running):
    for rule in running:
        (log,) = rule.log
        assert log.startswith(("results/", "resources/")) and "/logs/" in log and rule.script
        made = rule.output[0].get_wildcard_names() if rule.output else []
        assert set(log.get_wildcard_names()) == set(made), rule


def test_every_script_that_makes_files_leaves_a_sidecar(running):
    for rule in running:
        text = (ROOT / "workflow" / "scripts" / Path(rule.script).name).read_text(encoding="utf-8")
        assert ("with recorded(snakemake)" in text) == bool(rule.output), rule


def test_engine_rules_have_a_benchmark_and_take_a_device(running):
    engines = {rule.name for rule in running if is_engine(rule)}
    assert engines in (ENGINE_RULES, set())  # a run on published records starts none
    for rule in running:
        assert bool(rule.benchmark) == (rule.name in engines), rule
        asked = {"gpu", "cpu_engine", "mem_mb", "runtime"}
        assert asked <= set(rule.resources) or rule.name not in engines, rule


def test_every_rule_has_an_environment(running):
    for rule in running:
        env = rule.conda_env
        if is_engine(rule):
            assert callable(env) or env in ENGINE_ENVS, rule
        else:
            assert env == "../../envs/analysis.yaml", rule


def test_what_changes_a_result_is_one_parameter(running):
    """Snakemake compares parameters without their names, so that two could trade values unseen."""
    for rule in running:
        assert list(rule.params.keys()) == ["job"], rule


def test_wildcards_take_what_the_configuration_names_and_no_more(running):
    for rule in running:
        for output in rule.output:
            constraints = re.findall(r"\{(\w+)(,?)", output)
            assert all(constraint for _, constraint in constraints), (rule, output)


def test_what_a_reader_sees_is_in_the_report(parsed, running):
    assert Path(str(parsed.report_text)).is_file()
    marked = {}
    for rule in running:
        for output in rule.output:
            if report := output.flags.get("report"):
                assert report.caption and report.category, rule
                marked.setdefault(rule.name, []).append(Path(output).name)
    claims = {"claims": ["claims.csv"]} if parsed.is_rule("claims") else {}
    assert marked == claims | {
        "table": ["table1.csv"],
        "decomposition": ["table2.csv"],
        "statistics": ["statistics.csv"],
        "figures": [f"figure{n}.png" for n in (1, 2, 3, 4, 5)],
        "report": ["index.html"],
    }


def test_the_schema_is_closed():
    def objects(schema, path="top"):
        if isinstance(schema, dict):
            if "properties" in schema or schema.get("type") == "object":
                yield path, schema
            for key, child in schema.items():
                yield from objects(child, f"{path}.{key}")
        elif isinstance(schema, list):
            for index, child in enumerate(schema):
                yield from objects(child, f"{path}.{index}")

    for path, schema in objects(load_schema()):
        alternatives = schema.get("oneOf", [])  # each of which is closed
        assert "additionalProperties" in schema or alternatives, path
        assert schema.get("additionalProperties") is not True, path


def test_pre_commit_takes_the_versions_of_the_lock():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {repo["repo"].rpartition("/")[2]: repo["rev"] for repo in hooks}
    assert revisions["ruff-pre-commit"] == f"v{LOCKED['ruff']}"
    assert revisions["snakefmt"] == f"v{LOCKED['snakefmt']}"
    (needed,) = hooks[-1]["hooks"][0]["additional_dependencies"]
    assert needed == f"shfmt-py=={LOCKED['shfmt-py']}"


def test_the_snakefile_asks_for_no_newer_snakemake_than_is_locked():
    (oldest,) = re.findall(r'min_version\("(\d+)\.(\d+)"\)', (ROOT / "Snakefile").read_text())
    locked = LOCKED["snakemake"].split(".")
    assert [int(n) for n in oldest] <= [int(n) for n in locked[:2]]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Snakemake {LOCKED['snakemake']} ({'.'.join(oldest)} is the oldest" in readme


def test_the_catalog_entry_names_what_the_workflow_has():
    entry = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    assert entry == {"usage": {"software-stack-deployment": {"conda": True}, "report": True}}
