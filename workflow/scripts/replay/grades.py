"""Grades of every stored continuation and trunk by every grader that can; no engine is needed."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from replay.datasets import load_problems
from replay.grading import GRADERS, Answer, grade, graders_of
from replay.prompts import load_tokenizer
from replay.protocol import ARMS, PROBE, pivot_key
from replay.storage import StoredFileError, check_folder, read_jsonl, seal_folder, write_jsonl


def grade_solution(
    solution: str, continuation: str, gold: Answer, finish_reason: str, grading: dict
) -> dict:
    """Grade one completed solution by every grader of the configured one's kind of answers.

    `reward` (0 or 1) is the configured one's. `solution` is trunk + forced token + continuation,
    without the prompt (paper section 3.1). Each grader reads what its scope names; `grading.scope`
    overrides the configured grader's.
    """
    outcomes, answers = {}, {}
    for name in graders_of(GRADERS[grading["grader"]].answers):
        override = grading["scope"] if name == grading["grader"] else None
        text = continuation if (override or GRADERS[name].scope) == "continuation" else solution
        result = grade(name, text, gold, finish_reason)
        outcomes[name], answers[name] = result.outcome, result.answer
    outcome = outcomes[grading["grader"]]
    reward = int(outcome == "right")
    return {"outcome": outcome, "reward": reward, "outcomes": outcomes, "answers": answers}


def grade_trunks(trunks: Iterable[dict], golds: dict[int, Answer], grading: dict) -> Iterator[dict]:
    """A row a rollout: its outcome by every grader."""
    for row in trunks:
        gold = golds[row["problem_id"]]
        graded = grade_solution(row["text"], row["text"], gold, row["finish_reason"], grading)
        yield {"problem_id": row["problem_id"], "rollout": row["rollout"]} | graded


def grade_pass(
    completions: Iterable[dict],
    trunks: dict[tuple[int, int], dict],
    forced: dict[tuple[int, int, int, str], int],
    golds: dict[int, Answer],
    decode: Callable[[list[int]], str],
    grading: dict,
) -> Iterator[dict]:
    """A row a continuation of one pass (probes are not graded).

    `trunks` maps (problem, rollout) to the trunk row, `forced` maps (problem, rollout, abs_pos,
    arm) to the token put at the pivot, `decode` turns token ids into text.
    """
    for row in completions:
        if row["k"] == PROBE:
            continue
        problem, rollout = row["problem_id"], row["rollout"]
        token = forced.get((problem, rollout, row["abs_pos"], row["arm"]))
        if token is None or (problem, rollout) not in trunks:
            raise StoredFileError(
                f"problem {problem}, rollout {rollout}, position {row['abs_pos']}, arm "
                f"{row['arm']}: a continuation of no pivot of these trunks; delete the passes and "
                "rerun"
            )
        trunk = trunks[problem, rollout]
        kept = trunk["token_ids"][: row["abs_pos"] - len(trunk["prompt_token_ids"])]
        solution = decode([*kept, token, *row["token_ids"]])
        continuation = decode(row["token_ids"])
        identity = {name: row[name] for name in ("problem_id", "rollout", "abs_pos", "arm", "k")}
        yield identity | grade_solution(
            solution, continuation, golds[problem], row["finish_reason"], grading
        )


def run(
    grading: dict,
    passes: list[str],
    trunk_folders: list[str],
    passes_folders: list[str],
    dataset: Path | str,
    model: Path | str,
    folder: Path | str,
) -> None:
    """Grade the trunks and every pass of a configuration, all shards: a file each in `folder`.

    Raises StoredFileError when a file is not what was written, or passes were made from other
    trunks.
    """
    for trunks in trunk_folders:
        check_folder(trunks)
    for passed in passes_folders:
        check_folder(passed, made_from=trunk_folders)

    def of_passes(name: str) -> Iterator[dict]:
        return (row for passed in passes_folders for row in read_jsonl(Path(passed) / name))

    tokenizer = load_tokenizer(model)
    problems = load_problems(dataset, GRADERS[grading["grader"]].answers)
    golds = {problem.index: problem.answer for problem in problems}
    rows = [row for trunks in trunk_folders for row in read_jsonl(Path(trunks) / "trunks.jsonl")]
    trunks = {(row["problem_id"], row["rollout"]): row for row in rows}
    forced = {
        (*pivot_key(pivot), arm): token
        for pivot in of_passes("pivots.jsonl")
        for arm, token in zip(
            ARMS, (pivot["sampled_token"], pivot["alternative_token"]), strict=True
        )
    }

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    write_jsonl(Path(folder) / "trunks.jsonl", grade_trunks(rows, golds, grading))
    for name in passes:
        write_jsonl(
            Path(folder) / f"{name}.jsonl",
            grade_pass(of_passes(f"{name}.jsonl"), trunks, forced, golds, decode, grading),
        )
    seal_folder(folder, made_from=passes_folders)
