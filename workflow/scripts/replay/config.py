"""Configuration: validation against the schema, defaults, and each configuration resolved."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from replay import published
from replay.datasets import ANSWERS, DatasetError, answer_kind, canonical
from replay.grading import GRADERS, graders_of
from replay.protocol import CATALOGUE, PASSES, Pass
from replay.storage import digest

SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "config.schema.yaml"
CATALOG_PATH = Path(__file__).parents[3] / "config" / "catalog.yaml"
# Sections that hold for every configuration unless it overrides them.
SECTIONS = ("engine", "prompt", "trunks", "pivots", "continuations", "grading")
# Single values that do.
VALUES = ("passes", "pass_order")
TWIN = "batch-invariant"
LEAST_TEMPERATURE = 1e-3
# The schema's types as they are written in YAML.
TYPES = {
    "array": "a list, such as [a, b]",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a mapping of keys to values",
    "string": "text",
}


def _is_whole(_checker: jsonschema.TypeChecker, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# JSON Schema takes 2.0 for an integer; Python's ranges do not.
VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole),
)


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key and what it may be."""


@cache
def load_schema() -> dict:
    """The schema of configurations, with the graders and kinds of answers that are registered."""
    schema = yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))
    schema["$defs"]["grader"]["enum"] = list(GRADERS)
    schema["$defs"]["answers"]["enum"] = list(ANSWERS)
    return schema


def validate(config: dict, schema: dict) -> None:
    """Raise ConfigError naming every key that the schema refuses."""
    messages = sorted(_unusable(config))
    if not messages:
        errors = VALIDATOR(schema).iter_errors(config)
        messages = sorted(message for error in errors for message in _messages(error))
    if messages:
        raise ConfigError("invalid configuration:\n  " + "\n  ".join(dict.fromkeys(messages)))


def _unusable(value: Any, key: str = "") -> Iterator[str]:
    """What YAML can say and no key can mean: keys that are no text, NaN and infinities."""
    if isinstance(value, dict):
        for name, child in value.items():
            if not isinstance(name, str):
                yield f"{key or '(top level)'}: key {name!r} is not text; quote it"
            yield from _unusable(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _unusable(child, f"{key}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{key}: {value} is not a finite number"


def _messages(error: jsonschema.ValidationError) -> list[str]:
    key = ".".join(map(str, error.absolute_path)) or "(top level)"
    if error.validator == "oneOf":
        return _closest_alternative(error, key)
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - set(known))
        return [_unknown_key(key, name, known) for name in unknown]
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return [f"{key}: missing key {name!r}" for name in missing]
    if error.validator == "enum":
        allowed = ", ".join(map(repr, error.validator_value))
        return [f"{key}: {error.instance!r} is not one of {allowed}"]
    if error.validator == "type":
        return [_wrong_type(key, error.instance, error.validator_value)]
    return [f"{key}: {error.message}"]


def _wrong_type(key: str, value: Any, types: str | list[str]) -> str:
    wanted = [TYPES[name] for name in ([types] if isinstance(types, str) else types)]
    return f"{key}: {value!r} is not {' or '.join(wanted)}"


def _unknown_key(key: str, name: str, known: list[str]) -> str:
    where = "" if key == "(top level)" else f"{key}."
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return f"{where}{name}: unknown key; {hint}"


def _closest_alternative(error: jsonschema.ValidationError, key: str) -> list[str]:
    """Messages of the alternative that was meant: the one whose `source` or type fits."""
    by_alternative: dict[int, list[jsonschema.ValidationError]] = {}
    for child in error.context:
        by_alternative.setdefault(child.schema_path[0], []).append(child)
    for children in by_alternative.values():
        if not any(
            child.validator in ("const", "type")
            and len(child.path) <= 1
            and (child.validator == "const" or not child.path)
            for child in children
        ):
            return [message for child in children for message in _messages(child)]
    kinds = [schema.get("type") for schema in error.validator_value]
    if None in kinds:
        return []  # told apart by `source`, whose own message says what it may be
    return [_wrong_type(key, error.instance, kinds)]


def with_defaults(value: Any, schema: dict, root: dict) -> Any:
    """A copy of `value` in which every absent key that has a default is filled in."""
    schema = follow(schema, root)
    if not isinstance(value, dict):
        return value
    for alternative in schema.get("oneOf", []):
        properties = follow(alternative, root).get("properties", {})
        constant = properties.get("source", {}).get("const")
        if constant == value.get("source") and properties:
            schema = alternative
    filled = dict(value)
    properties = schema.get("properties", {})
    for name, child in properties.items():
        child = follow(child, root)
        if name not in filled and "default" in child:
            filled[name] = deepcopy(child["default"])
        if name in filled:
            filled[name] = with_defaults(filled[name], child, root)
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        for name in set(filled) - set(properties):
            filled[name] = with_defaults(filled[name], others, root)
    return filled


def follow(schema: dict, root: dict) -> dict:
    """The schema that a local `$ref` points to, with what stands beside the `$ref` put over it."""
    while "$ref" in schema:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")] | beside
    return schema


@dataclass(frozen=True)
class Cohort:
    name: str
    settings: dict

    @property
    def window(self) -> range:
        """Indices that the cohort may use, screened out or not."""
        screen = self.settings["screen"]
        size = screen["scan_limit"] if screen else self.settings["n"]
        return range(self.settings["start"], self.settings["start"] + size)

    def check_window(self, problems: int) -> None:
        """Raise ConfigError when the window passes the end of a dataset of `problems` rows."""
        if self.window.stop > problems:
            key = "screen.scan_limit" if self.settings["screen"] else "n"
            raise ConfigError(
                f"cohorts.{self.name}: the window {self.window.start} to {self.window.stop - 1} "
                f"passes the end of dataset {self.settings['dataset']} (last index "
                f"{problems - 1}); lower cohorts.{self.name}.{key} or cohorts.{self.name}.start"
            )


@dataclass(frozen=True)
class TrunkSet:
    """Trunks that configurations share when they differ only in what follows the trunk."""

    cohort: Cohort
    model: str
    settings: dict  # everything that determines the trunks

    @property
    def dataset(self) -> str:
        return self.cohort.settings["dataset"]

    @property
    def engine(self) -> dict:
        return self.settings["engine"]

    @cached_property
    def name(self) -> str:
        numerics = self.settings["engine"]["numerics"]
        return f"{self.cohort.name}_{self.model}_{numerics}_{digest(self.settings)[:8]}"


@dataclass(frozen=True)
class EngineSet:
    """An engine as configurations share it, and the prompts that its self-check takes."""

    model: str
    dataset: str
    settings: dict

    @property
    def engine(self) -> dict:
        return self.settings["engine"]

    @cached_property
    def name(self) -> str:
        numerics = self.settings["engine"]["numerics"]
        return f"{self.model}_{numerics}_{digest(self.settings)[:8]}"


@dataclass(frozen=True)
class Configuration:
    """One row of Table 1, with every setting resolved."""

    name: str
    label: str
    model: str
    numerics: str
    trunk_sets: tuple[TrunkSet, ...]
    sections: dict  # section name -> settings
    in_figure3 = True  # whose probes Figure 3 pools

    @property
    def dataset(self) -> str:
        return self.trunk_sets[0].dataset

    @property
    def engine(self) -> dict:
        return self.sections["engine"]

    @property
    def cohorts(self) -> list[str]:
        return [trunk_set.cohort.name for trunk_set in self.trunk_sets]

    @cached_property
    def engine_set(self) -> EngineSet:
        settings = self.trunk_sets[0].settings
        return EngineSet(
            self.model,
            self.dataset,
            {name: settings[name] for name in ("model", "dataset", "engine", "prompt")},
        )

    def select(self, *sections: str) -> dict:
        return {section: self.sections[section] for section in sections}

    @property
    def published_settings(self) -> dict:
        """`config` of a records file: the published names, then every section in full."""
        trunks, pivots, sampling = (
            self.sections[name] for name in ("trunks", "pivots", "continuations")
        )
        same = sampling["temperature"] == trunks["temperature"]
        return {
            "configuration": self.name,
            "model": self.model,
            "numerics": self.numerics,
            "cohorts": {t.cohort.name: t.cohort.settings for t in self.trunk_sets},
            "problems": sum(t.cohort.settings["n"] for t in self.trunk_sets),
            "rollouts": trunks["rollouts"],
            "temperature": trunks["temperature"],
            "top_p": trunks["top_p"],
            "k": sampling["k"],
            "margin_lt": pivots["margin_lt"],
            "boundary_slack": pivots["boundary_slack"],
            "max_pivots_per_rollout": pivots["max_per_rollout"],
            "max_trunk_tokens": trunks["max_tokens"],
            "max_cont_tokens": sampling["max_tokens"],
            "cont_temp": None if same else sampling["temperature"],
            "passes": self.sections["passes"],
            "pass_order": self.sections["pass_order"],
            "sections": self.sections,
        }


@dataclass(frozen=True)
class Study:
    """A whole configuration file, validated, with defaults filled in."""

    config: dict
    configurations: dict[str, Configuration | published.PublishedConfiguration]
    absent: dict[str, list[str]] = field(default_factory=dict)  # left out, for want of these files

    @property
    def is_published(self) -> bool:
        """Whether this run recomputes the paper from its records instead of running an engine."""
        return "published" in self.config

    @property
    def note(self) -> str:
        """What the run leaves out, and why; empty if nothing."""
        lacking = [f"{name} ({', '.join(files)})" for name, files in self.absent.items()]
        return "Left out for want of record files: " + ", ".join(lacking) if lacking else ""

    @cached_property
    def trunk_sets(self) -> dict[str, TrunkSet]:
        every = (t for c in self.configurations.values() for t in c.trunk_sets)
        return {trunk_set.name: trunk_set for trunk_set in every}

    @cached_property
    def engine_sets(self) -> dict[str, EngineSet]:
        every = (c.engine_set for c in self.configurations.values())
        return {engine_set.name: engine_set for engine_set in every if engine_set}

    @cached_property
    def rows(self) -> list[dict]:
        """What Table 1 says of each configuration besides its numbers."""
        return [
            {
                "name": c.name,
                "label": c.label,
                "model": c.model,
                "numerics": c.numerics,
                "engine_set": c.engine_set and c.engine_set.name,
                "trunk_sets": [trunk_set.name for trunk_set in c.trunk_sets],
                "in_figure3": c.in_figure3,
            }
            for c in self.configurations.values()
        ]

    @cached_property
    def shards(self) -> list[str]:
        count = 0 if self.is_published else self.config["shards"]
        return [f"{i}-of-{count}" for i in range(count)]


def check_keys(paths: Iterable[Path | str]) -> None:
    """Raise ConfigError where a mapping has a key twice: YAML would silently lose the first."""
    for path in paths:
        try:
            root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except yaml.YAMLError:  # JSON may be indented with tabs
            continue
        for first, second in _twice(root):
            raise ConfigError(
                f"{path}, line {second.start_mark.line + 1}: key {second.value!r} is there already,"
                f" in line {first.start_mark.line + 1}; one of the two would be lost"
            )


def _twice(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Pairs of equal keys of one mapping, at any depth."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield seen[key.value], key
                seen.setdefault(key.value, key)
            yield from _twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _twice(child)


def read_config(path: Path | str) -> dict:
    """A configuration file over the catalog, as `--configfile` gives it to the workflow.

    Raises OSError when it cannot be read, ConfigError when it is no YAML or JSON with keys.
    """
    from snakemake.common.configfile import load_configfile
    from snakemake.exceptions import WorkflowError

    try:
        own = load_configfile(str(path))
    except WorkflowError as error:
        raise ConfigError(f"{path}: {error}") from error
    check_keys([path])
    return with_catalog(own)


def with_catalog(own: dict) -> dict:
    """A configuration over the catalog, joined key by key to any depth."""
    from snakemake.common.configfile import load_configfile
    from snakemake.utils import update_config

    config = load_configfile(CATALOG_PATH)
    update_config(config, own)
    return config


def load_study(config: dict) -> Study:
    """Validate a configuration and resolve it. Raises ConfigError naming the key at fault."""
    schema = load_schema()
    validate(config, schema)
    _check_names(config)
    config = _with_twins(config)
    filled = with_defaults(config, schema, schema)
    if "published" in filled:
        return _published_study(filled)
    for name, cohort in filled["cohorts"].items():
        _check_cohort(name, cohort, filled["datasets"])
    _check_labels(filled["configurations"])
    configurations = {
        name: _resolve(name, entry, config, filled)
        for name, entry in filled["configurations"].items()
    }
    return Study(filled, configurations)


def _published_study(filled: dict) -> Study:
    if "configurations" in filled:
        raise ConfigError("configurations: a run with the section 'published' takes none")
    try:
        return Study(filled, *published.resolve(filled["published"]))
    except published.PublishedError as error:
        raise ConfigError(str(error)) from error


def check_local_sources(study: Study) -> None:
    """Refuse, before any job runs, local files that are missing, malformed or too short.

    Raises ConfigError naming the config key, and for a bad row its file and line. Only what the
    configurations use is looked at; published records are checked by their rule.
    """
    if study.is_published:
        return
    for model in sorted({c.model for c in study.configurations.values()}):
        entry = study.config["models"][model]
        if entry["source"] == "local" and not Path(entry["path"]).is_dir():
            raise ConfigError(f"models.{model}.path: {entry['path']} is not a folder")
    for trunk_set in study.trunk_sets.values():
        entry = study.config["datasets"][trunk_set.dataset]
        if entry["source"] == "local":
            try:
                problems = canonical(entry).count(b"\n")
            except DatasetError as error:
                raise ConfigError(f"datasets.{trunk_set.dataset}: {error}") from error
            trunk_set.cohort.check_window(problems)


def _resolve(name: str, entry: dict, given: dict, filled: dict) -> Configuration:
    key = f"configurations.{name}"
    model = entry.get("model", filled.get("model"))
    if model is None:
        raise ConfigError(f"{key}.model: no model is named, here or at the top level")
    _known(f"{key}.model", model, filled["models"], "models")
    own = given["configurations"][name]
    sections = {s: filled[s] | own.get(s, {}) for s in SECTIONS}
    sections |= {name: own.get(name, filled[name]) for name in VALUES}
    numerics = own.get("numerics", filled["numerics"])
    sections["engine"] = sections["engine"] | {"numerics": numerics}
    _check_lengths(key, sections)
    _check_temperatures(key, sections)
    _check_engine(key, sections["engine"])
    _check_passes(f"{key}: passes", sections["passes"], sections["engine"]["process"])
    cohorts = []
    for cohort in entry["cohorts"]:
        _known(f"{key}.cohorts", cohort, filled["cohorts"], "cohorts")
        cohorts.append(Cohort(cohort, filled["cohorts"][cohort]))
    _check_overlap(key, cohorts)
    dataset = cohorts[0].settings["dataset"]
    _check_grader(
        f"{key}: grading.grader", sections["grading"]["grader"], dataset, filled["datasets"]
    )
    trunk_sets = tuple(_trunk_set(cohort, model, sections, filled) for cohort in cohorts)
    return Configuration(name, entry.get("label", name), model, numerics, trunk_sets, sections)


def _trunk_set(cohort: Cohort, model: str, sections: dict, filled: dict) -> TrunkSet:
    settings = {
        "model": filled["models"][model],
        "dataset": filled["datasets"][cohort.settings["dataset"]],
        "cohort": cohort.settings,
        **{section: sections[section] for section in ("engine", "prompt", "trunks")},
    }
    return TrunkSet(cohort, model, settings)


def _known(key: str, name: str, known: dict, what: str) -> None:
    if name not in known:
        names = ", ".join(known) or "none"
        raise ConfigError(f"{key}: unknown name {name!r}; known {what}: {names}")


def _check_names(config: dict) -> None:
    """Refuse names whose end Snakemake takes for a rule that feeds itself: 20 times the same."""
    for section in ("models", "datasets", "configurations"):
        for name in config.get(section, {}):
            if loop := re.search(r"(.+)\1{19}$", name):
                raise ConfigError(
                    f"{section}.{name}: the name ends in {loop[1]!r}, 20 times in a row, which "
                    "Snakemake refuses; choose another"
                )


def _check_cohort(name: str, cohort: dict, datasets: dict) -> None:
    _known(f"cohorts.{name}.dataset", cohort["dataset"], datasets, "datasets")
    if screen := cohort["screen"]:
        key = f"cohorts.{name}.screen.grader"
        _check_grader(key, screen["grader"], cohort["dataset"], datasets)
    if cohort["screen"] and cohort["screen"]["scan_limit"] < cohort["n"]:
        raise ConfigError(
            f"cohorts.{name}.screen.scan_limit: {cohort['screen']['scan_limit']} problems are "
            f"scanned at most, but cohorts.{name}.n asks for {cohort['n']}"
        )


def _check_grader(key: str, grader: str, dataset: str, datasets: dict) -> None:
    """Refuse a grader of another kind of answers than the dataset has."""
    has, reads = answer_kind(datasets[dataset]), GRADERS[grader].answers
    if has != reads:
        raise ConfigError(
            f"{key}: {grader!r} reads {reads} answers, but dataset {dataset} has {has} answers "
            f"(datasets.{dataset}.answers), which these read: {', '.join(graders_of(has))}"
        )


def _check_labels(configurations: dict) -> None:
    labels: dict[str, str] = {}
    for name, entry in configurations.items():
        label = entry.get("label", name)
        if label in labels:
            raise ConfigError(
                f"configurations.{name}.label: {label!r} is also that of {labels[label]}"
            )
        labels[label] = name


def _check_overlap(key: str, cohorts: list[Cohort]) -> None:
    datasets = {cohort.settings["dataset"] for cohort in cohorts}
    if len(datasets) > 1:
        raise ConfigError(f"{key}.cohorts: pooled cohorts need one dataset, not {sorted(datasets)}")
    for one, other in combinations(cohorts, 2):
        common = range(
            max(one.window.start, other.window.start), min(one.window.stop, other.window.stop)
        )
        if common:
            raise ConfigError(
                f"{key}.cohorts: the windows of {one.name} and {other.name} overlap at indices "
                f"{common.start} to {common.stop - 1}; move cohorts.{other.name}.start"
            )


def _check_lengths(key: str, sections: dict) -> None:
    engine = sections["engine"]
    longest = sections["trunks"]["max_tokens"] + max(
        sections["continuations"]["max_tokens"], sections["continuations"]["probe_tokens"]
    )
    if longest >= engine["max_model_len"]:
        raise ConfigError(
            f"{key}: trunks.max_tokens and continuations.max_tokens take {longest} tokens, but "
            f"engine.max_model_len is {engine['max_model_len']}"
        )
    if engine["device"] == "cpu" and engine["max_num_batched_tokens"] < engine["max_model_len"]:
        raise ConfigError(
            f"{key}: engine.max_num_batched_tokens ({engine['max_num_batched_tokens']}) is below "
            f"engine.max_model_len ({engine['max_model_len']}); a CPU engine cannot split a prefill"
        )


def _check_temperatures(key: str, sections: dict) -> None:
    for name in ("trunks", "continuations"):
        if 0 < (temperature := sections[name]["temperature"]) < LEAST_TEMPERATURE:
            raise ConfigError(
                f"{key}: {name}.temperature is {temperature}, by which logits overflow; 0 is "
                f"greedy, all else is at least {LEAST_TEMPERATURE}"
            )


def _check_engine(key: str, engine: dict) -> None:
    """Settings of a GPU engine that a CPU has not, and an attention version without its backend."""
    for name, neutral in (
        ("attention_backend", None),
        ("flash_attn_version", None),
        ("tensor_parallel", 1),
    ):
        if engine["device"] == "cpu" and engine[name] != neutral:
            raise ConfigError(
                f"{key}: engine.{name} is {engine[name]!r}, but engine.device is cpu, which takes "
                f"{neutral!r} only"
            )
    if engine["flash_attn_version"] and engine["attention_backend"] not in (None, "FLASH_ATTN"):
        raise ConfigError(
            f"{key}: engine.flash_attn_version is {engine['flash_attn_version']}, but "
            f"engine.attention_backend is {engine['attention_backend']}, which has no versions"
        )


def _check_passes(key: str, passes: list[str], process: str) -> None:
    """Refuse passes listed twice or that the engine cannot run, and a list without the paper's."""
    allowed = [name for name, kind in CATALOGUE.items() if _can_run(kind, process)]
    advice = f"with engine.process {process} these can be listed: {', '.join(allowed)}"
    for name in passes:
        if passes.count(name) > 1:
            raise ConfigError(f"{key}: {name} is listed twice; {advice}, each once")
        if name not in allowed:
            raise ConfigError(f"{key}: {name} needs engine.process in-process; {advice}")
    if missing := [name for name in PASSES if name not in passes]:
        raise ConfigError(
            f"{key}: {', '.join(missing)} is missing; Table 1 compares {', '.join(PASSES)}, so "
            f"every list has them; {advice}"
        )


def _can_run(kind: Pass, process: str) -> bool:
    """Only an in-process engine is stepped by us, so that arrivals can be seeded."""
    return kind.admission != "staggered" or process == "in-process"


def _with_twins(config: dict) -> dict:
    """With `batch_invariant_twins`, a batch-invariant twin behind every stock configuration."""
    if not config.get("batch_invariant_twins"):
        return config
    configurations = {}
    for name, entry in config["configurations"].items():
        configurations[name] = entry
        if entry.get("numerics", config.get("numerics", "stock")) == "stock":
            twin = f"{name}-{TWIN}"
            if twin in config["configurations"]:
                raise ConfigError(
                    f"configurations.{twin}: batch_invariant_twins makes one of that name from "
                    f"{name}; rename it, or set numerics: {TWIN} without twins"
                )
            label = f"{entry.get('label', name)}, {TWIN}"
            configurations[twin] = entry | {"label": label, "numerics": TWIN}
    return config | {"configurations": configurations}
