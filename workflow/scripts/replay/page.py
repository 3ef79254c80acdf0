"""What the report page is made from: everything a run stored, gathered into one context."""

import subprocess
from pathlib import Path

import pandas as pd

from replay.protocol import PASSES
from replay.storage import read_json

QUESTION = (
    "When a transcript is cut at a token and continued, does re-feeding the text give the same "
    "credit estimates as resuming the state that the model was in, beyond what repeating the "
    "same measurement changes?"
)


def gather(
    run: str,
    title: str,
    rows: list[dict],
    records: list[str],
    analyses: list[str],
    cohorts: list[str],
    passes: list[str],
    table: str,
    figures: list[str],
) -> dict:
    """Context of `report.build_report`.

    `rows` are name, label, model, numerics and trunk sets of each configuration; `records` and
    `analyses` are their files in the same order; `passes` are folders
    `.../<configuration>/<shard>`.
    """
    reports = {Path(path).parent.name: read_json(path) for path in cohorts}
    configurations = [
        _configuration(row, read_json(record), read_json(analysis), reports)
        for row, record, analysis in zip(rows, records, analyses, strict=True)
    ]
    engines = {Path(folder).parent.name: _engine(folder) for folder in passes}
    return {
        "run": run,
        "title": title,
        "question": QUESTION,
        "configurations": configurations,
        "engine": _merged(engines),
        "counts": _counts(configurations, passes),
        "table": pd.read_csv(table),
        "figures": {number: Path(path) for number, path in enumerate(figures, start=1)},
        "main": rows[0]["name"],
        "generated": commit(),
    }


def _configuration(row: dict, records: dict, analysis: dict, reports: dict) -> dict:
    """One configuration, with the trunk accuracy of its problems put into its cohorts."""
    accuracy = {p["problem_id"]: p["rollout_accuracy"] for p in records["per_problem"]}
    cohorts = []
    for name in row["trunk_sets"]:
        report = dict(reports[name])
        report["problems"] = [
            entry | {"accuracy": accuracy.get(entry["index"], entry["accuracy"])}
            for entry in report["problems"]
        ]
        cohorts.append(report)
    return {
        **{name: row[name] for name in ("name", "label", "model", "numerics")},
        "analysis": analysis,
        "settings": flatten(records["config"]["sections"]),
        "cohorts": cohorts,
        "note": " ".join(report["note"] for report in cohorts if report["note"]),
        "per_problem": records["per_problem"],
    }


def flatten(settings: dict, prefix: str = "") -> dict:
    """Nested settings under dotted names."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _engine(passes_folder: str) -> dict:
    """Facts that the engine told; none where no pivot was found and no engine started."""
    facts = read_json(Path(passes_folder) / "engine.json")
    return flatten(facts[0]) if facts else {}


def _merged(engines: dict[str, dict]) -> dict:
    """One value where all configurations agree, else each configuration's own."""
    names = dict.fromkeys(name for facts in engines.values() for name in facts)
    merged = {}
    for name in names:
        values = {key: facts[name] for key, facts in engines.items() if name in facts}
        same = len(set(map(str, values.values()))) == 1
        merged[name] = (
            next(iter(values.values()))
            if same
            else ", ".join(f"{key}: {value}" for key, value in values.items())
        )
    return merged


def _counts(configurations: list[dict], passes: list[str]) -> dict:
    """Work done: each trunk counted once, however many configurations share it."""
    trunks = {
        (configuration["numerics"], cohort["name"], problem["problem_id"]): problem
        for configuration in configurations
        for cohort in configuration["cohorts"]
        for problem in configuration["per_problem"]
        if problem["problem_id"] in {entry["index"] for entry in cohort["problems"]}
    }
    rollouts = sum(problem["rollouts"] for problem in trunks.values())
    right = sum(p["rollouts"] * p["rollout_accuracy"] for p in trunks.values())
    seconds = [entry for folder in passes for entry in read_json(Path(folder) / "seconds.json")]
    return {
        "trunk_rollouts": rollouts,
        "trunk_accuracy": right / rollouts if rollouts else None,
        "pivots": sum(c["analysis"]["n_records"] for c in configurations),
        "requests": len(PASSES) * sum(entry["requests"] for entry in seconds),
    }


def commit() -> str:
    """The git commit that the page was made from, or `unknown` outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" (modified)" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
