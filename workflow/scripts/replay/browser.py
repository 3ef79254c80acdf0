"""What the page's pivot browser shows: pivots in a bounded selection, with the texts behind them.

Texts that a pass shares with exact 1 are stored once. A run without stored passes, such as one on
published records, has pivots without texts.
"""

import json
from collections.abc import Callable, Iterable
from os.path import commonprefix
from pathlib import Path

import pandas as pd

from replay.analysis import common_set, flipped, pivot_frame
from replay.datasets import load_problems
from replay.grading import GRADERS
from replay.prompts import load_tokenizer
from replay.protocol import ARMS, REFERENCE, others, passes_of, pivot_key
from replay.records import by_pivot
from replay.storage import read_json, read_jsonl, write_text

Decode = Callable[[list[int]], str]


def segments(ids: list[int], cuts: Iterable[int], decode: Decode) -> list[str]:
    """The text of `ids`, cut before each token number of the ascending `cuts`.

    Prefixes are decoded, not pieces: a token alone may be half a character, or lose its space.
    """
    text = decode(ids)
    starts = [len(commonprefix([decode(ids[:cut]), text])) for cut in cuts]
    return [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]


def continuation(reference: dict, row: dict, decode: Decode) -> dict:
    """Text of one completion: how many characters exact 1 has as well, and the rest.

    `token` is the first token, counted from 0, that differs; None where none does.
    """
    ids, other = row["token_ids"], reference["token_ids"]
    if ids == other:
        return {"shared": len(decode(other)), "rest": "", "token": None}
    token = len(commonprefix([ids, other]))
    text = decode(ids)
    shared = len(commonprefix([decode(ids[:token]), text, decode(other)]))
    return {"shared": shared, "rest": text[shared:], "token": token}


def arm(token: int, raw: dict, grades: dict, grader: str, decode: Decode) -> dict:
    """One arm of a pivot; `raw` and `grades` map pass -> k -> row.

    `passes` of a continuation are in the order of `raw`, None where all is as under exact 1.
    """
    continuations = []
    for k, reference in raw[REFERENCE].items():
        passes = {
            name: continuation(reference, rows[k], decode)
            | {"finish": rows[k]["finish_reason"]}
            | _grade(grades[name].get(k), grader)
            for name, rows in raw.items()
        }
        first = passes[REFERENCE]
        passes = [
            None if name != REFERENCE and each == first else each for name, each in passes.items()
        ]
        continuations.append({"k": k, "text": decode(reference["token_ids"]), "passes": passes})
    return {"token": decode([token]), "continuations": continuations}


def _grade(row: dict | None, grader: str) -> dict:
    """Outcome and the answer that was read; a probe is not graded."""
    return {"outcome": row["outcome"], "answer": row["answers"][grader]} if row else {}


def facts(record: dict, signs: dict, passes: list[str]) -> dict:
    """What the record of a pivot says, without its texts. What it lacks is None."""
    return {
        **{name: record[name] for name in ("problem_id", "rollout", "abs_pos", "margin")},
        **signs,
        "cached": [record.get(f"cached_tokens_{name}") for name in passes],
        "resumed": [record.get(f"cache_ok_{name}") for name in passes],
        "preempted": [record.get(f"preempted_{name}") for name in passes],
        "borrowed_blocks": record.get("borrowed_blocks"),
        "flags": record.get("flags"),
    }


def sign_table(records: list[dict], k: int, passes: list[str]) -> dict[tuple[int, int, int], dict]:
    """Per pivot: its estimates in the order of `passes`, and what the paper's section 3.2 makes
    of them: whether it is eligible, and under which passes its sign changed or was reversed."""
    frame, compared = pivot_frame(records, k, passes), others(passes)
    eligible = frame.index.isin(common_set(frame, passes).index)
    changed = pd.DataFrame({name: flipped(frame, name) for name in compared})
    reversed_ = pd.DataFrame({n: frame["A_exact1"] * frame[f"A_{n}"] < 0 for n in compared})
    return {
        pivot_key(row): {
            "estimates": [row[f"A_{name}"] for name in passes],
            "eligible": bool(fits),
            "changed": [name for name in compared if flips[name]],
            "reversed": [name for name in compared if turns[name]],
        }
        for row, fits, flips, turns in zip(
            frame.to_dict("records"), eligible, changed.to_dict("records"),
            reversed_.to_dict("records"), strict=True,
        )
    }  # fmt: skip


def in_order(records: list[dict], signs: dict) -> list[dict]:
    """The records in the order in which they are selected, ties in the order of the problems.

    Polarity reversals come first, then other sign changes, then eligible pivots, then the rest.
    """

    def place(record: dict) -> tuple:
        sign = signs[pivot_key(record)]
        return not sign["reversed"], not sign["changed"], not sign["eligible"], pivot_key(record)

    return sorted(records, key=place)


class Texts:
    """The stored texts of one configuration: problems, transcripts, continuations and grades."""

    def __init__(
        self,
        records: dict,
        problems: dict[int, dict],
        trunks: list[dict],
        passes: dict[str, list[dict]],
        grades: dict[str, list[dict]],
        decode: Decode,
    ):
        self.problems, self.decode = problems, decode
        self.grader = grader_of(records)
        self.trunks = {(row["problem_id"], row["rollout"]): row for row in trunks}
        self.raw = {name: by_pivot(rows) for name, rows in passes.items()}
        self.grades = {name: by_pivot(rows) for name, rows in grades.items()}
        self.pivots: dict[tuple[int, int], list[dict]] = {}
        for record in sorted(records["pivots"], key=pivot_key):
            self.pivots.setdefault((record["problem_id"], record["rollout"]), []).append(record)

    def arms(self, record: dict) -> list[dict]:
        """Both arms of a pivot, the written token's first."""
        key = pivot_key(record)
        tokens = (record["sampled_token"], record["alternative_token"])
        return [
            arm(
                token,
                {name: rows[key][side] for name, rows in self.raw.items()},
                {name: rows[key][side] for name, rows in self.grades.items()},
                self.grader,
                self.decode,
            )
            for side, token in zip(ARMS, tokens, strict=True)
        ]

    def transcript(self, record: dict) -> dict:
        """The rollout of a pivot: segments of its text, every second one a pivot, and where
        these pivots are; without segments where the transcript is not stored."""
        key = record["problem_id"], record["rollout"]
        pivots = self.pivots[key]
        transcript = {"right": bool(record["rollout_correct"])}
        if key in self.trunks:
            cuts = [p["gen_index"] + step for p in pivots for step in (0, 1)]
            transcript["segments"] = segments(self.trunks[key]["token_ids"], cuts, self.decode)
            transcript["at"] = [p["abs_pos"] for p in pivots]
        return transcript


def build(records: dict, texts: Texts | None, budget: int) -> dict:
    """Pivots in the order of `in_order`, as many as fit into `budget` bytes of JSON.

    `problems` and `rollouts` (under "<problem>/<rollout>") are those of the pivots; `total` counts
    all pivots. Without `texts` pivots have no arms.
    """
    passes = passes_of(records)
    signs = sign_table(records["pivots"], records["config"]["k"], passes)
    chosen: dict = {"problems": {}, "rollouts": {}, "pivots": []}
    for record in in_order(records["pivots"], signs):
        problem, rollout = str(record["problem_id"]), f"{record['problem_id']}/{record['rollout']}"
        entry = facts(record, signs[pivot_key(record)], passes)
        added: dict = {"problems": {}, "rollouts": {}, "pivots": [entry]}
        if texts:
            entry["arms"] = texts.arms(record)
            if problem not in chosen["problems"]:
                added["problems"][problem] = texts.problems[record["problem_id"]]
            if rollout not in chosen["rollouts"]:
                added["rollouts"][rollout] = texts.transcript(record)
        budget -= len(dumped(added))
        if budget < 0:
            break
        chosen["problems"] |= added["problems"]
        chosen["rollouts"] |= added["rollouts"]
        chosen["pivots"].append(entry)
    chosen["pivots"].sort(key=pivot_key)
    counted = {"k": records["config"]["k"], "total": len(records["pivots"])}
    return {"passes": passes, **counted, **chosen}


def dumped(value: dict) -> bytes:
    """Compact JSON, as the page holds it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def grader_of(records: dict) -> str:
    """The configured grader of these records."""
    return records["config"]["sections"]["grading"]["grader"]


def stored_texts(
    records: dict,
    passes_folders: list[str],
    grades_folders: list[str],
    trunk_folders: list[str],
    dataset: str,
    model: str,
) -> Texts:
    """The texts behind the records of one configuration."""

    def rows(folders: list[str], name: str) -> list[dict]:
        paths = [Path(folder) / f"{name}.jsonl" for folder in folders]
        return [row for path in paths if path.exists() for row in read_jsonl(path)]

    tokenizer = load_tokenizer(model)
    problems = load_problems(dataset, GRADERS[grader_of(records)].answers)
    return Texts(
        records,
        {p.index: {"question": p.question, "answer": p.answer} for p in problems},
        rows(trunk_folders, "trunks"),
        {name: rows(passes_folders, name) for name in passes_of(records)},
        {name: rows(grades_folders, name) for name in passes_of(records)},
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    )


def run(
    records_file: str,
    passes_folders: list[str],
    grades_folder: str | None,
    trunk_folders: list[str],
    dataset: str | None,
    model: str | None,
    budget: int,
    output: Path | str,
) -> None:
    """Write the browser's data of one configuration; there are texts where passes are stored."""
    records, texts = read_json(records_file), None
    if passes_folders:
        texts = stored_texts(
            records, passes_folders, [grades_folder], trunk_folders, dataset, model
        )
    write_text(output, dumped(build(records, texts, budget)).decode())
