"""Grades of every stored continuation and trunk by every grader that can; no engine is needed."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from replay.datasets import load_problems
from replay.grading import GRADERS, Answer, grade, graders_of
from replay.prompts import load_tokenizer
from replay.protocol import ARMS, PROBE, pivot_key
from replay.storage import read_jsonl, write_jsonl


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
        trunk = trunks[problem, rollout]
        kept = trunk["token_ids"][: row["abs_pos"] - len(trunk["prompt_token_ids"])]
        token = forced[problem, rollout, row["abs_pos"], row["arm"]]
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
    passes_folder: Path | str,
    dataset: Path | str,
    model: Path | str,
    folder: Path | str,
) -> None:
    """Grade the trunks and every pass of one shard: one file each in `folder`."""
    tokenizer = load_tokenizer(model)
    problems = load_problems(dataset, answers=GRADERS[grading["grader"]].answers)
    golds = {problem.index: problem.answer for problem in problems}
    rows = [row for trunks in trunk_folders for row in read_jsonl(Path(trunks) / "trunks.jsonl")]
    trunks = {(row["problem_id"], row["rollout"]): row for row in rows}
    forced = {
        (*pivot_key(pivot), arm): token
        for pivot in read_jsonl(Path(passes_folder) / "pivots.jsonl")
        for arm, token in zip(
            ARMS, (pivot["sampled_token"], pivot["alternative_token"]), strict=True
        )
    }

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    write_jsonl(Path(folder) / "trunks.jsonl", grade_trunks(rows, golds, grading))
    for name in passes:
        completions = read_jsonl(Path(passes_folder) / f"{name}.jsonl")
        write_jsonl(
            Path(folder) / f"{name}.jsonl",
            grade_pass(completions, trunks, forced, golds, decode, grading),
        )
