"""What the report page is made from: everything a run stored, gathered into one context."""

from pathlib import Path

import pandas as pd

from replay.origins import origins
from replay.planning import needed_sentence
from replay.provenance import git_state
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
    shards: list[str],
    invariance: list[str],
    table: str,
    figures: list[str],
    browser: list[str],
    registration: str,
    rule_graph: str,
    output: str,
    published: dict | None = None,
    claims: str | None = None,
) -> dict:
    """Context of `report.build_report`.

    `rows` are `Study.rows`; `records` and `analyses` are their files in the same order, and
    `browser` those of `browser.run`; `shards` are files `<configuration>.json` of
    `records.shard_facts`; `invariance` are self-checks, in files named after the engine set;
    `registration` is what `registration.assess` found, `rule_graph` an SVG, `output` the page
    itself. A run on published records has no shards, but `published`, where they come from and what
    is left out, and `claims`, the file of the paper's claims.
    """
    reports = {Path(path).parent.name: read_json(path) for path in cohorts}
    read = [
        row
        | {
            "records": read_json(record),
            "analysis": read_json(analysis),
            "browser": read_json(data),
        }
        for row, record, analysis, data in zip(rows, records, analyses, browser, strict=True)
    ]
    configurations = [_configuration(row, reports) for row in read]
    ran = [(Path(path).stem, shard) for path in shards for shard in read_json(path)]
    engines = [(name, flatten(facts)) for name, shard in ran for facts in shard["engines"]]
    passes = [str(Path(output).parents[1] / "passes" / name / s["shard"]) for name, s in ran]
    return {
        "run": run,
        "title": title,
        "question": QUESTION,
        "configurations": configurations,
        "engine": _merged(engines),
        "invariance": _self_checks(rows, invariance),
        "counts": _counts(configurations, [shard for _, shard in ran]),
        "table": pd.read_csv(table),
        "figures": {int(Path(path).stem.removeprefix("figure")): Path(path) for path in figures},
        "needed": needed_sentence(read),
        "main": rows[0]["name"],
        "generated": commit(),
        "registration": read_json(registration),
        "rule_graph": Path(rule_graph).read_text(encoding="utf-8"),
        "origins": origins(rows, records, passes, output),
        "published": published
        and published | {"claims": pd.read_csv(claims, dtype=str, keep_default_na=False)},
    }


def _configuration(row: dict, reports: dict) -> dict:
    """One configuration, with the trunk accuracy of its problems put into its cohorts."""
    records = row["records"]
    accuracy = {p["problem_id"]: p["rollout_accuracy"] for p in records["per_problem"]}
    cohorts = []
    for name in row["trunk_sets"]:
        report = reports[name] | {"trunk_set": name}
        report["problems"] = [
            entry | {"accuracy": accuracy.get(entry["index"], entry["accuracy"])}
            for entry in report["problems"]
        ]
        cohorts.append(report)
    return {
        **{
            name: row[name]
            for name in (
                "name",
                "label",
                "model",
                "numerics",
                "in_figure3",
                "analysis",
                "browser",
            )
        },
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


def _merged(engines: list[tuple[str, dict]]) -> dict:
    """One value where all engines agree, else every value with the configurations that had it."""
    merged: dict = {}
    for name in dict.fromkeys(name for _, facts in engines for name in facts):
        holders: dict[str, dict] = {}
        for configuration, facts in engines:
            if name in facts:
                holders.setdefault(str(facts[name]), {})[configuration] = facts[name]
        if len(holders) == 1:
            merged[name] = next(iter(next(iter(holders.values())).values()))
        else:
            merged[name] = "; ".join(f"{', '.join(who)}: {v}" for v, who in holders.items())
    return merged


def _self_checks(rows: list[dict], invariance: list[str]) -> list[dict]:
    """Each engine's self-check, with the rows of the configurations that it ran."""
    users: dict[str, list[dict]] = {}
    for row in rows:
        users.setdefault(row["engine_set"], []).append(row)
    return [
        read_json(path) | {"name": Path(path).stem, "configurations": users[Path(path).stem]}
        for path in invariance
    ]


def _counts(configurations: list[dict], shards: list[dict]) -> dict:
    """Work done: each trunk counted once, however many configurations share it."""
    trunks = {
        (cohort["trunk_set"], problem["problem_id"]): problem
        for configuration in configurations
        for cohort in configuration["cohorts"]
        for problem in configuration["per_problem"]
        if problem["problem_id"] in {entry["index"] for entry in cohort["problems"]}
    }
    rollouts = sum(problem["rollouts"] for problem in trunks.values())
    right = sum(p["rollouts"] * p["rollout_accuracy"] for p in trunks.values())
    return {
        "trunk_rollouts": rollouts,
        "trunk_accuracy": right / rollouts if rollouts else None,
        "pivots": sum(c["analysis"]["n_records"] for c in configurations),
        "requests": sum(shard["requests"] for shard in shards),
    }


def commit() -> str:
    """The git commit that the page was made from, or why it is not known."""
    state = git_state()
    if not state["commit"]:
        return f"unknown ({state['reason']})"
    return state["commit"] + (" (modified)" if state["dirty"] else "")
