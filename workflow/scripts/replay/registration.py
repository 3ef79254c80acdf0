"""Registration: settings and decision rule that are locked before data exist, and kept to.

`config/registration.yaml` names them and a digest over them. `lock` writes when, and at which
commit, that digest was locked; `statement` says of a configuration whether its data were made
under the lock, or what deviates.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from replay.provenance import ROOT, commit_date, git_state, sidecar_path
from replay.storage import StoredFileError, digest, now, read_json, sha256_file, write_json

PATH = ROOT / "config" / "registration.yaml"
SCHEMA_PATH = ROOT / "workflow" / "schemas" / "registration.schema.yaml"
FOLDER = Path("registration")
FORMAT = "registration-lock/2"
# Rules that make a verdict of data: their code is locked with the settings.
VERDICT_RULES = ("grade", "records", "analyze", "registration")
REGISTERED, DEVIATES = "registered", "deviates"


class RegistrationError(ValueError):
    """A registration that is not what its digest says."""


def load(path: Path = PATH) -> dict:
    """`settings` (sections of a configuration), `decision` and the `digest` over both.

    Raises RegistrationError when the file cannot be read, is not of the schema, or says another
    digest.
    """
    try:
        registration = yaml.safe_load(path.read_text(encoding="utf-8"))
        jsonschema.validate(registration, _schema())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise RegistrationError(f"{path.name}: cannot be read ({error})") from error
    except jsonschema.ValidationError as error:
        key = ".".join(map(str, error.absolute_path)) or "the file"
        raise RegistrationError(
            f"{path.name}, {key}: {error.message}; it takes what {SCHEMA_PATH.name} says"
        ) from error
    settings, decision = registration["settings"], registration["decision"]
    low, high = decision["negligible_below_pct"], decision["material_above_pct"]
    if not low <= high:
        raise RegistrationError(
            f"{path.name}: decision.negligible_below_pct ({low}) is above"
            f" decision.material_above_pct ({high})"
        )
    if (written := registration["digest"]) != (
        found := digest({"settings": settings, "decision": decision})
    ):
        raise RegistrationError(
            f"{path.name}: what it locks has digest {found}, its line `digest` says {written}; "
            "if the change is meant, write the new digest there: it is another registration"
        )
    return registration


def _schema() -> dict:
    return yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))


def lock_path(registration: dict) -> Path:
    return FOLDER / f"{registration['digest'][:16]}.json"


def lock(registration: dict, code: dict[str, str]) -> tuple[dict, bool]:
    """The lock, and whether it is new: one that exists is never written again.

    `code` holds the digest of the code of each of VERDICT_RULES.
    """
    path = lock_path(registration)
    if path.exists():
        return read_lock(path), False
    content = {"format": FORMAT, "time": now(), **git_state()}
    content |= {"registration": registration, "code": code}
    content["sha256"] = digest(content)
    write_json(path, content)
    return content, True


def read_lock(path: Path) -> dict:
    """A lock that is whole; RegistrationError when it was edited, or is older than its commit."""
    try:
        content = read_json(path)
        body = {name: value for name, value in content.items() if name != "sha256"}
        intact = content["sha256"] == digest(body) and content["format"] == FORMAT
    except (StoredFileError, KeyError, TypeError):
        intact = False
    if not intact:
        raise RegistrationError(f"{path}: this lock was edited; take the published one")
    committed = commit_date(content["commit"])
    if committed and datetime.fromisoformat(content["time"]) < datetime.fromisoformat(committed):
        raise RegistrationError(
            f"{path}: it says that it was written at {content['time']}, before its commit was made"
            f" ({committed}); take the published one"
        )
    return content


def began(jobs: dict[str, str]) -> str | None:
    """When the first of the jobs that made these outputs began; None unless each is known.

    `jobs` maps an output to the log of its job: no sidecar but that job's own is asked.
    """
    starts = [_began(output, sidecar_path(log)) for output, log in jobs.items()]
    return min(starts) if starts and None not in starts else None


def _began(output: str, path: Path) -> str | None:
    sidecar = read_json(path) if path.exists() else {}
    return sidecar["began"] if output in sidecar.get("outputs", {}) else None


def engine_sidecars(jobs: dict[str, dict[str, str]]) -> dict[str, dict]:
    """`began` and `sha256` of the sidecars by which the data are dated, for the audit."""
    paths = {sidecar_path(log) for of_engine in jobs.values() for log in of_engine.values()}
    return {
        str(path): {"began": read_json(path)["began"], "sha256": sha256_file(path)}
        for path in sorted(paths)
        if path.exists()
    }


def statement(
    registration: dict,
    found: dict | None,
    sections: dict,
    first: str | None,
    code: dict[str, str],
) -> dict[str, Any]:
    """`state` of one configuration, and its `deviations`.

    `found` is the lock or None; `sections` are the settings of its records; `first` is when the
    first of its engine jobs began, None where that is not known; `code` is that of VERDICT_RULES.
    """
    deviations = list(_deviating(registration["settings"], sections))
    if first is None:
        deviations.append("data: when they were generated is not on record")
    elif not found:
        deviations.append("lock: none was written; `snakemake --cores 1 register` does so")
    elif found["registration"] != registration:
        deviations.append("lock: it is of another registration")
    elif first <= found["time"]:
        deviations.append("data: generated before the lock")
    deviations += _not_as_locked(found, code) if found else []
    return {"state": DEVIATES if deviations else REGISTERED, "deviations": deviations}


def _not_as_locked(found: dict, code: dict[str, str]) -> Iterator[str]:
    """What of the code is not, or cannot be known to be, the lock's."""
    if found["dirty"]:
        yield "lock: written from a modified checkout"
    for rule, digest_now in code.items():
        if found["code"].get(rule) != digest_now:
            yield f"code of {rule}: it is not that of the lock"


def _deviating(registered: dict, sections: dict) -> Iterator[str]:
    """Settings that are not as registered, with both values."""
    for section, settings in registered.items():
        used = sections.get(section) or {}
        for name, value in settings.items():
            if name not in used:
                yield f"{section}.{name}: registered {json.dumps(value)}, not recorded"
            elif used[name] != value:
                here = json.dumps(used[name])
                yield f"{section}.{name}: registered {json.dumps(value)}, here {here}"


def verdict(decision: dict, analysis: dict) -> str:
    """What the decision rule says of a configuration: of its sign changes under re-feed, in
    percent of the pivots that are eligible in any pass (paper section 3.2)."""
    rate, floor = (analysis["common_set"][name]["flip_rate"] for name in ("refeed", "floor"))
    pivots, problems = analysis["common_set"]["refeed"]["n"], analysis["clustered"]["n_problems"]
    if rate is None:
        return "undecided: no pivot is eligible"
    low, high = decision["negligible_below_pct"], decision["material_above_pct"]
    percent = 100 * rate
    if percent > high:
        word, bound = "material", f"above {high:g}%"
    elif percent < low:
        word, bound = "negligible", f"below {low:g}%"
    else:
        word, bound = "between", f"from {low:g}% to {high:g}%"
    return (
        f"{word}: {percent:.1f}% is {bound} (the replica floor is {100 * floor:.1f}%; eligible"
        f" pivots: {pivots}, problems with such: {problems})"
    )


def stated(name: str, of: dict) -> str:
    """One line on one configuration, for a table."""
    listed = "; ".join(of["deviations"])
    return f"Registration, {name}: {of['state']}" + (f" in {listed}" if listed else "")


def assess(
    registration: dict,
    lock_file: str | None,
    jobs: dict[str, dict[str, str]],
    records: list[str],
    analyses: list[str],
    code: dict[str, str],
) -> dict:
    """`registration.json`: the registration, its lock, and per configuration `state`, `deviations`
    and `verdict`.

    `jobs` maps each configuration to its engine jobs, log by output; `records` and `analyses` are
    files in the same order; `code` is that of VERDICT_RULES now.
    """
    found = read_lock(Path(lock_file)) if lock_file else None
    statements = {}
    for (name, of_engine), record, analysis in zip(jobs.items(), records, analyses, strict=True):
        sections = read_json(record)["config"]["sections"]
        made = statement(registration, found, sections, began(of_engine), code)
        said = verdict(registration["decision"], read_json(analysis))
        statements[name] = made | {"verdict": said}
    return {
        "registration": registration,
        "lock": found and {n: v for n, v in found.items() if n != "registration"},
        "configurations": statements,
    }
