"""One record per pivot: the credit estimate under every pass, with the published field names."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from replay.protocol import ARMS, PROBE, REFERENCE, others, pivot_key, warm
from replay.storage import StoredFileError, check_folder, read_json, read_jsonl, write_json


def by_pivot(
    rows: Iterable[dict], what: str = "pass"
) -> dict[tuple[int, int, int], dict[str, dict]]:
    """Rows of one pass as pivot -> arm -> k -> row; StoredFileError when one is there twice."""
    table: dict = defaultdict(lambda: {arm: {} for arm in ARMS})
    for row in rows:
        of_arm = table[pivot_key(row)][row["arm"]]
        if row["k"] in of_arm:
            raise StoredFileError(
                f"{what}, {_where(pivot_key(row), row['arm'])}: k={row['k']} is there twice; "
                "delete the folder and rerun"
            )
        of_arm[row["k"]] = row
    return table


def check_complete(what: str, table: dict, pivots: Iterable[dict], wanted: set) -> None:
    """`table` has a row for every pivot, arm and k of `wanted`, and no other (StoredFileError)."""
    asked = {pivot_key(pivot) for pivot in pivots}
    for key in asked | set(table):
        found = {arm: set(table[key][arm]) if key in table else set() for arm in ARMS}
        for arm, ks in found.items():
            if ks != (wanted if key in asked else set()):
                raise StoredFileError(
                    f"{what}, {_where(key, arm)}: {_listed(ks)} are there, "
                    f"{_listed(wanted if key in asked else ())} were asked for; delete the "
                    "folder and rerun"
                )


def _where(key: tuple[int, int, int], arm: str) -> str:
    return "problem {}, rollout {}, position {}, arm {}".format(*key, arm)


def _listed(ks: Iterable) -> str:
    return f"k={sorted(ks, key=str)}"


def estimate(grades: dict[str, dict[int, dict]]) -> float:
    """A_t: mean reward of the actual arm minus that of the alternative (paper section 3.1)."""
    actual, alternative = (
        sum(row["reward"] for row in grades[arm].values()) / len(grades[arm]) for arm in ARMS
    )
    return actual - alternative


def probe_comparison(reference: dict, compared: dict) -> dict:
    """The grading-free channel: greedy probes of both arms against exact1's (paper 3.2).

    The delta is the per-pivot maximum over the arms of the first token's logprob difference.
    """
    pairs = [(reference[arm][PROBE], compared[arm][PROBE]) for arm in ARMS]
    return {
        "divergence": any(a["token_ids"] != b["token_ids"] for a, b in pairs),
        "delta": max(abs(a["logprobs"][0] - b["logprobs"][0]) for a, b in pairs),
        "equal": all(
            a["token_ids"] == b["token_ids"] and a["logprobs"] == b["logprobs"] for a, b in pairs
        ),
    }


def continuations_equal(reference: dict, compared: dict) -> int:
    """How many of the 2K continuations have the token ids that they had under exact1."""
    return sum(
        row["token_ids"] == compared[arm][k]["token_ids"]
        for arm in ARMS
        for k, row in reference[arm].items()
        if k != PROBE
    )


def cache_facts(pivot: dict, requests: dict[str, dict]) -> dict:
    """Did every request of a pivot resume the restored blocks, and was any preempted?

    To have resumed is to have hit the block-aligned pivot position, on the restored blocks.
    """
    rows = [row for arm in ARMS for row in requests[arm].values()]
    cached = [row["num_cached_tokens"] for row in rows]
    aligned = pivot["abs_pos"] - pivot["offset"]
    return {
        "cached": [min(cached), max(cached)],
        "ok": all(row["num_cached_tokens"] >= aligned and row["resumed"] for row in rows),
        "preempted": any(row["preemptions"] for row in rows),
    }


def trunk_delta(pivot: dict, requests: dict) -> float | None:
    """How far a pass is from the trunk itself: the actual arm's first probe logprob against that
    which the trunk recorded for the same token at the same position, nats.

    None where the rollout ends at the pivot, or where the token is not in the trunk's top-k.
    """
    probe = requests["actual"][PROBE]
    recorded = dict(map(tuple, pivot["next_topk"] or ())).get(probe["token_ids"][0])
    return None if recorded is None else abs(probe["logprobs"][0] - recorded)


def record(pivot: dict, rollout_correct: int, raw: dict, grades: dict) -> dict:
    """One pivot's record. `raw` and `grades` map pass -> arm -> k -> row."""
    passes, compared = list(raw), others(raw)
    caches = {name: cache_facts(pivot, raw[name]) for name in passes}
    probes = {name: probe_comparison(raw[REFERENCE], raw[name]) for name in compared}
    equal = {name: continuations_equal(raw[REFERENCE], raw[name]) for name in compared}
    flags = [f"{name}_cache_miss" for name in warm(passes) if not caches[name]["ok"]]
    flags += [f"{name}_preempted" for name in passes if caches[name]["preempted"]]
    return {
        "problem_id": pivot["problem_id"],
        "rollout": pivot["rollout"],
        "abs_pos": pivot["abs_pos"],
        "gen_index": pivot["gen_index"],
        "margin": pivot["margin"],
        "rollout_correct": rollout_correct,
        **{f"A_{name}": estimate(grades[name]) for name in passes},
        **{f"cache_ok_{name}": caches[name]["ok"] for name in warm(passes)},
        **{f"greedy_first_{name}": _first_tokens(raw[name]) for name in passes},
        **{f"greedy_divergence_{name}": probes[name]["divergence"] for name in compared},
        **{f"greedy_first_logprob_delta_{name}": probes[name]["delta"] for name in compared},
        "cohort": pivot["cohort"],
        "block_size": pivot["block_size"],
        "offset": pivot["offset"],
        "sampled_token": pivot["sampled_token"],
        "alternative_token": pivot["alternative_token"],
        "topk": pivot["topk"],
        "borrowed_blocks": pivot["borrowed_blocks"],
        **{f"cached_tokens_{name}": caches[name]["cached"] for name in passes},
        **{f"preempted_{name}": caches[name]["preempted"] for name in passes},
        **{f"probe_equal_{name}": probes[name]["equal"] for name in compared},
        **{f"continuations_equal_{name}": equal[name] for name in compared},
        "outcomes": {name: _per_arm(grades[name], "outcome") for name in passes},
        "outcomes_by_grader": {name: _per_arm(grades[name], "outcomes") for name in passes},
        "finish_reasons": {name: _per_arm(raw[name], "finish_reason") for name in passes},
        "flags": flags,
        "next_topk": pivot["next_topk"],
        **{f"trunk_delta_{name}": trunk_delta(pivot, raw[name]) for name in passes},
        **({"text_changed": pivot["text_changed"]} if "text_changed" in pivot else {}),
    }


def _first_tokens(requests: dict) -> dict:
    return {
        arm: [requests[arm][PROBE]["token_ids"][0], requests[arm][PROBE]["logprobs"][0]]
        for arm in ARMS
    }


def _per_arm(rows: dict, field: str) -> dict:
    """The field of every continuation (not of the probe), in the order of k."""
    return {
        arm: [rows[arm][k][field] for k in sorted(k for k in rows[arm] if k != PROBE)]
        for arm in ARMS
    }


def build(
    settings: dict,
    pivots: list[dict],
    trunk_grades: list[dict],
    completions: dict[str, Iterable[dict]],
    grades: dict[str, Iterable[dict]],
    orders: dict[int, list[str]],
) -> dict:
    """The records file: `config`, `per_problem`, `pivots` (published field names, and more).

    `completions` and `grades` map the passes to their rows, `orders` the problems to the order in
    which their passes ran.
    """
    raw = {name: by_pivot(rows, f"pass {name}") for name, rows in completions.items()}
    graded = {name: by_pivot(rows, f"grades of pass {name}") for name, rows in grades.items()}
    ks = set(range(settings["k"]))
    for name in raw:
        check_complete(f"pass {name}", raw[name], pivots, ks | {PROBE})
        check_complete(f"grades of pass {name}", graded[name], pivots, ks)
    correct = {(row["problem_id"], row["rollout"]): row["reward"] for row in trunk_grades}
    rows = [
        record(
            pivot,
            correct[pivot["problem_id"], pivot["rollout"]],
            {name: raw[name][pivot_key(pivot)] for name in raw},
            {name: graded[name][pivot_key(pivot)] for name in raw},
        )
        for pivot in pivots
    ]
    return {
        "experiment": "replay-noise-audit",
        "config": settings,
        "per_problem": per_problem(trunk_grades, rows, warm(raw), orders),
        "pivots": rows,
    }


def per_problem(
    trunk_grades: list[dict], rows: list[dict], warm_passes: list[str], orders: dict
) -> list[dict]:
    """A summary a problem, in the order of the trunks."""
    rewards, records = defaultdict(list), defaultdict(list)
    for row in trunk_grades:
        rewards[row["problem_id"]].append(row["reward"])
    for row in rows:
        records[row["problem_id"]].append(row)
    return [
        {
            "problem_id": problem,
            "pivots": len(records[problem]),
            "rollouts": len(values),
            "rollout_accuracy": sum(values) / len(values),
            "cache_violations": {
                name: sum(not row[f"cache_ok_{name}"] for row in records[problem])
                for name in warm_passes
            },
            "pass_order": orders.get(problem),
        }
        for problem, values in rewards.items()
    ]


def run(
    settings: dict,
    passes_folders: list[str],
    grades_folder: str,
    output: Path | str,
) -> None:
    """Write the records file of one configuration from all its shards.

    Raises StoredFileError when a file is not what was written, when the grades are of other passes,
    and when a continuation that was asked for is missing or there twice.
    """
    for folder in passes_folders:
        check_folder(folder)
    check_folder(grades_folder, made_from=passes_folders)

    def rows(folders: list[str], name: str) -> list[dict]:
        return [row for folder in folders for row in read_jsonl(Path(folder) / f"{name}.jsonl")]

    passes = settings["passes"]
    ran = (entry for f in passes_folders for entry in read_json(Path(f) / "order.json"))
    records = build(
        settings,
        sorted(rows(passes_folders, "pivots"), key=pivot_key),
        sorted(rows([grades_folder], "trunks"), key=lambda r: (r["problem_id"], r["rollout"])),
        {name: rows(passes_folders, name) for name in passes},
        {name: rows([grades_folder], name) for name in passes},
        {entry["problem_id"]: entry["order"] for entry in ran},
    )
    write_json(output, records)


def shard_facts(passes_folders: list[str]) -> list[dict]:
    """Of each shard: its name, what its engines said of themselves (none where no pivot was found
    and none started), and how many requests its passes took."""
    return [
        {
            "shard": folder.name,
            "engines": read_json(folder / "engine.json"),
            "requests": sum(map(_requests, read_json(folder / "seconds.json"))),
        }
        for folder in map(Path, passes_folders)
    ]


def _requests(entry: dict) -> int:
    """All of a problem: its entry in seconds.json has those of one pass and a key a pass."""
    return entry["requests"] * len(entry.keys() - {"problem_id", "requests"})
