"""The paper's own records: where each file is, and whether it is what was published.

Eight files make up the seven configurations of the paper's Table 1. A local file is taken before a
download, and every file is checked against its schema, its own K and its pinned sha256.
"""

import hashlib
import http.client
import json
import math
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from replay.protocol import EXACT, PASSES, pivot_key
from replay.storage import atomic_path

DOWNLOADS = Path("resources/published")
SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "records.schema.yaml"
TIMEOUT_S = 60
REPLACE = "replace it by the published file"
KEY = ("problem_id", "rollout", "abs_pos")
# Fields of every record but those of the first campaign, which precedes them (paper 3.4).
INSTRUMENTED = (*(f"cache_ok_{p}" for p in EXACT), *(f"greedy_first_{p}" for p in PASSES))
FIRST_CAMPAIGN = "campaign1_"
# Settings that say which problems a file holds; files of one configuration share all others.
COHORT = ("problems", "screen_mixed", "scan_start", "scan_limit")
# The same in the records that this workflow writes.
OWN_COHORT = ("configuration", "cohorts")
# Settings that only those records state.
OWN = ("numerics", "passes", "pass_order", "sections")


def _is_finite(_checker: jsonschema.TypeChecker, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# JSON in Python reads NaN as a number.
VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("number", _is_finite),
)


class PublishedError(ValueError):
    """Published records that cannot be had or are not what they should be."""


@dataclass(frozen=True)
class PublishedConfiguration:
    """One row of the paper's Table 1, made of published record files."""

    name: str
    label: str
    model: str  # as the table prints it
    files: tuple[str, ...]
    k: int | None = 4  # None where the label says nothing of it
    numerics: str = "stock"
    in_figure3: bool = True
    checkpoint: str = ""  # as the files name the model, where that is not how the table prints it
    is_of_one_model: bool = False  # by its label, so that records of another one are refused
    trunk_sets = ()  # its trunks are not published
    engine_set = None  # and it starts no engine


CONFIGURATIONS = {
    c.name: c
    for c in (
        PublishedConfiguration(
            "main",
            "Main pooled (t=0.7, K=4)",
            "Qwen2.5-7B-Instruct",
            ("campaign2_primary", "campaign2_screened"),
        ),
        PublishedConfiguration("k8", "K=8", "Qwen2.5-7B-Instruct", ("campaign2_k8",), k=8),
        PublishedConfiguration(
            "k16",
            "K=16 (10 problems)",
            "Qwen2.5-7B-Instruct",
            ("campaign2_k16",),
            k=16,
            in_figure3=False,
        ),
        PublishedConfiguration(
            "greedy",
            "Greedy (t=0, K=1; campaign 1)",
            "Qwen2.5-7B-Instruct",
            ("campaign1_temp0",),
            k=1,
            in_figure3=False,
        ),
        PublishedConfiguration(
            "grpo",
            "GRPO (t=0.7, K=4; campaign 1)",
            "SimpleRL-Zoo-7B",
            ("campaign1_grpo",),
            in_figure3=False,
            checkpoint="Qwen-2.5-7B-SimpleRL-Zoo",
            is_of_one_model=True,
        ),
        PublishedConfiguration(
            "phi",
            "Phi-4-mini (t=0.7, K=4)",
            "Phi-4-mini-instruct",
            ("campaign2_phi",),
            is_of_one_model=True,
        ),
        PublishedConfiguration(
            "batchinv",
            "Batch-invariant kernels",
            "Qwen2.5-7B-Instruct",
            ("campaign2_batchinv",),
            k=None,
            numerics="batch-invariant",
        ),
    )
}


def source(settings: dict, file: str) -> Path | None:
    """Where a record file is, or will be once downloaded; None if it is absent.

    ``settings`` are the section ``published`` of the configuration.
    """
    folder = settings["records_dir"]
    if folder is not None and (local := Path(folder) / f"{file}.json").is_file():
        return local
    download = DOWNLOADS / f"{file}.json"
    return download if settings["download"] or download.is_file() else None


def resolve(settings: dict) -> tuple[dict[str, PublishedConfiguration], dict[str, list[str]]]:
    """The configurations that can be computed, and for each other one the files that it lacks.

    Raises PublishedError when ``records_dir`` is not a folder, or no configuration is left.
    """
    folder = settings["records_dir"]
    if folder is not None and not Path(folder).is_dir():
        raise PublishedError(f"published.records_dir: {folder} is not a folder")
    absent = {
        c.name: [f"{file}.json" for file in c.files if source(settings, file) is None]
        for c in CONFIGURATIONS.values()
    }
    present = {
        c.name: replace(c, model=printed_model(c, source(settings, c.files[0])))
        for c in CONFIGURATIONS.values()
        if not absent[c.name]
    }
    if not present:
        raise PublishedError(
            "published: no configuration has its record files; set published.download to true, or"
            f" published.records_dir to the folder of {absent['main'][0]} and the others"
        )
    return present, {name: files for name, files in absent.items() if files}


def printed_model(configuration: PublishedConfiguration, file: Path) -> str:
    """The model of Table 1: the paper's name for it, or what own records name instead.

    A file that is still to be downloaded, or is no records file, has the paper's; the job that
    reads the file says what is wrong with it.
    """
    try:
        model = json.loads(file.read_bytes())["config"]["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return configuration.model
    return configuration.model if _is_model(configuration, model) else model


def _is_model(configuration: PublishedConfiguration, model: str) -> bool:
    """Whether records' ``model`` is the configuration's; Qwen/Qwen-2.5 and qwen2.5 are one."""

    def plain(name: str) -> str:
        return re.sub(r"[\W_]", "", name.rpartition("/")[2]).lower()

    return plain(model) in map(plain, (configuration.model, configuration.checkpoint))


def url(paper: dict, file: str) -> str:
    """Address of a record file at the pinned commit; ``paper`` is the configuration's section."""
    path = paper["records"][file]["path"]
    return f"https://raw.githubusercontent.com/{paper['repository']}/{paper['commit']}/{path}"


def provenance(settings: dict, paper: dict) -> dict:
    """What the page says of the record files: where each of them comes from."""
    files = [file for c in resolve(settings)[0].values() for file in c.files]
    folder = settings["records_dir"]
    local = {f for f in files if folder and source(settings, f).parent == Path(folder)}
    return {
        "repository": paper["repository"],
        "commit": paper["commit"],
        "files": [
            {"name": f, "local": f in local, **paper["records"][f]} for f in dict.fromkeys(files)
        ],
    }


def download(address: str, sha256: str, destination: Path | str) -> None:
    """Fetch one file; it appears whole and with the pinned sha256, or PublishedError is raised."""
    name = Path(destination).name
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:
            content = response.read()
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise PublishedError(
            f"{name}: {address} cannot be downloaded ({error}); check the network, or put the file"
            f" into a folder as {name} and set published.records_dir to that folder"
        ) from error
    if fault := _wrong_sum(content, sha256):
        raise PublishedError(f"{name}: {address} {fault}")
    with atomic_path(destination) as partial:
        partial.write_bytes(content)


def _wrong_sum(content: bytes, sha256: str) -> str:
    found = hashlib.sha256(content).hexdigest()
    return "" if found == sha256 else f"has sha256 {found}, not the pinned {sha256}"


def read(path: Path | str, sha256: str, instrumented: bool = True) -> dict:
    """The content of a record file that is what was published.

    Raises PublishedError that names the file, and the record at fault where there is one: no JSON,
    a field that is missing or not of its type (NaN is no number), a pivot given twice, an estimate
    that is not a multiple of 1/K, or another sha256. ``instrumented`` says whether the fields
    INSTRUMENTED must be there.
    """
    path = Path(path)
    raw = path.read_bytes()
    wrong_sum = _wrong_sum(raw, sha256)
    try:
        content = _parsed(raw)
        _check(content, instrumented)
    except ValueError as error:
        hint = f"; the file {wrong_sum}: {REPLACE}" if wrong_sum else ""
        raise PublishedError(f"{path}: {error}{hint}") from error
    if wrong_sum:
        raise PublishedError(f"{path} {wrong_sum}: {REPLACE}")
    return content


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from error


def _check(content: Any, instrumented: bool) -> None:
    """Raise ValueError that says what is wrong, in which record."""
    # Imported here: the configuration needs this module, but no data frames.
    from replay.analysis import pivot_frame

    schema = yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))
    for error in VALIDATOR(schema).iter_errors(content):
        raise ValueError(_place(content, list(error.absolute_path)) + error.message)
    if not content["pivots"]:
        raise ValueError("pivots: is empty")
    for i, record in enumerate(content["pivots"] if instrumented else []):
        for field in INSTRUMENTED:
            if field not in record:
                raise ValueError(f"{_place(content, ['pivots', i])}{field!r} is missing")
    pivot_frame(content["pivots"], content["config"]["k"])


def _place(content: Any, path: list) -> str:
    """What a path inside a record file points to, for a message."""
    names = {"pivots": "record", "per_problem": "per_problem"}
    if len(path) < 2 or path[0] not in names:
        return "".join(f"{name}: " for name in path)
    record = content[path[0]][path[1]]
    known = [name for name in KEY if isinstance(record, dict) and name in record]
    key = ", ".join(f"{name} {record[name]}" for name in known)
    return f"{names[path[0]]} {path[1]} ({key}): " + "".join(f"{name}: " for name in path[2:])


def pooled(name: str, files: list[str], sha256: list[str]) -> dict:
    """A records file, as this workflow writes them, from the published files of a configuration.

    ``files`` are those of ``PublishedConfiguration.files``, with the sha256 that each must have.
    Records that this workflow wrote may stand in for them. Pivots that several files hold are taken
    once, from the first. Raises as ``read`` does, and PublishedError where a file is not what the
    configuration's label says, or where the files differ in another setting than COHORT.
    """
    from replay.analysis import pool

    configuration = CONFIGURATIONS[name]
    names = configuration.files
    contents = {
        n: read(*pair, instrumented=not n.startswith(FIRST_CAMPAIGN))
        for n, *pair in zip(names, files, sha256, strict=True)
    }
    settings = {n: content["config"] for n, content in contents.items()}
    for file, of in zip(files, settings.values(), strict=True):
        _check_label(configuration, file, of)
    shared = _shared(settings)
    records, _ = pool(*files)
    cohort = {pivot_key(r): n for n in reversed(names) for r in contents[n]["pivots"]}
    return {
        "experiment": contents[names[0]]["experiment"],
        "config": shared
        | {
            "configuration": name,
            "numerics": configuration.numerics,
            "published": settings,
            "sections": _sections(shared, list(settings.values())),
        },
        "per_problem": [
            problem | {"cohort": n}
            for n, content in contents.items()
            for problem in content["per_problem"]
        ],
        "pivots": [record | {"cohort": cohort[pivot_key(record)]} for record in records],
    }


def _check_label(configuration: PublishedConfiguration, file: str, settings: dict) -> None:
    """Refuse records whose K, numerics or model is not what the label says of them."""
    said = {"numerics": configuration.numerics}
    if configuration.k is not None:
        said["k"] = configuration.k
    if configuration.is_of_one_model and not _is_model(configuration, settings["model"]):
        said["model"] = configuration.model
    for name, value in said.items():
        if settings.get(name, value) != value:
            raise PublishedError(
                f"{file}: config.{name} is {settings[name]}, but configuration"
                f" {configuration.name}, {configuration.label!r}, has {value}; name the file after"
                " a configuration that it fits"
            )


def _shared(settings: dict[str, dict]) -> dict:
    """The settings under which all files of a configuration were recorded."""
    unstated = {name for name in OWN for of in settings.values() if name not in of}
    apart = {*COHORT, *OWN_COHORT, *unstated}
    (first, one), *others = (
        (file, {name: value for name, value in of.items() if name not in apart})
        for file, of in settings.items()
    )
    for other, of in others:
        for name in sorted(one.keys() | of.keys()):
            if one.get(name) != of.get(name):
                raise PublishedError(
                    f"{first}.json and {other}.json: config.{name} is {one.get(name)} and"
                    f" {of.get(name)}; files of one configuration must share it"
                )
    return one


def _sections(shared: dict, files: list[dict]) -> dict:
    """The published settings under the names that this workflow's configuration gives them."""
    greedy = shared.get("cont_temp")
    cohort = {name: [settings.get(name) for settings in files] for name in COHORT}
    return {
        "model": shared["model"],
        "cohort": {n: values if len(files) > 1 else values[0] for n, values in cohort.items()},
        "trunks": {
            "rollouts": shared["rollouts"],
            "temperature": shared["temperature"],
            "top_p": shared["top_p"],
            "max_tokens": shared["max_trunk_tokens"],
        },
        "pivots": {
            "margin_lt": shared["margin_lt"],
            "boundary_slack": shared["boundary_slack"],
            "max_per_rollout": shared["max_pivots_per_rollout"],
        },
        "continuations": {
            "k": shared["k"],
            "temperature": shared["temperature"] if greedy is None else greedy,
            "top_p": shared["top_p"],
            "max_tokens": shared["max_cont_tokens"],
        },
    }
