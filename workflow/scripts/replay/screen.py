"""Cohorts: which problems are measured, and why (paper section 3.4, amendment 1)."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from replay.config import Cohort
from replay.datasets import Problem, answer_kind, load_problems
from replay.engine import software_versions
from replay.grading import Answer, grade
from replay.job import progress
from replay.kv_state import link_state, remove_state
from replay.protocol import OUTCOMES
from replay.storage import (
    Workspace,
    distinct,
    publish_folder,
    seal_folder,
    sha256_file,
    write_json,
)
from replay.trunks import TrunkGenerator


def candidates(cohort: Cohort, problems: list[Problem]) -> list[Problem]:
    """The problems of the cohort's window; ConfigError when it passes the end of the data."""
    cohort.check_window(len(problems))
    return problems[cohort.window.start : cohort.window.stop]


def outcomes(rows: list[dict], gold: Answer, grader: str) -> dict[str, int]:
    """How many of a problem's trunk rollouts have each of `protocol.OUTCOMES`."""
    graded = (grade(grader, row["text"], gold, row["finish_reason"]).outcome for row in rows)
    return dict.fromkeys(OUTCOMES, 0) | Counter(graded)


def scan(
    problems: Iterable[Problem],
    rollouts: Callable[[Problem], list[dict]],
    reject: Callable[[Problem], None],
    wanted: int,
    grader: str,
) -> list[dict]:
    """Keep problems whose trunk rollouts are neither all right nor all wrong, until `wanted`.

    Returns every problem looked at, in order: index, trunk accuracy, outcomes of its rollouts, and
    whether it was admitted. `reject` is told of each that was not.
    """
    looked_at: list[dict] = []
    for problem in problems:
        if sum(entry["admitted"] for entry in looked_at) == wanted:
            break
        counts = outcomes(rollouts(problem), problem.answer, grader)
        accuracy = counts["right"] / sum(counts.values())
        admitted = 0.0 < accuracy < 1.0
        if not admitted:
            reject(problem)
        entry = {"index": problem.index, "accuracy": accuracy, "outcomes": counts}
        looked_at.append(entry | {"admitted": admitted})
    return looked_at


def cohort_report(cohort: Cohort, looked_at: list[dict]) -> dict:
    """cohort.json: the problems, and whether the scan ended before enough were found."""
    settings = cohort.settings
    found = sum(entry["admitted"] for entry in looked_at)
    note = ""
    if found < settings["n"]:
        note = (
            f"scan limit reached: {found} of {settings['n']} problems of mixed accuracy found "
            f"among {len(looked_at)} scanned"
        )
    return {
        "name": cohort.name,
        "dataset": settings["dataset"],
        "screened": bool(settings["screen"]),
        "window": [cohort.window.start, cohort.window.stop - 1],
        "requested": settings["n"],
        "found": found,
        "scanned": len(looked_at) if settings["screen"] else 0,
        "problems": looked_at,
        "note": note,
    }


def fixed(problems: list[Problem]) -> list[dict]:
    """Entries of a fixed window: all admitted, unseen."""
    unseen = {"accuracy": None, "outcomes": None, "admitted": True}
    return [{"index": p.index} | unseen for p in problems]


def run(
    cohort_name: str,
    settings: dict,
    code: str,
    dataset: Path | str,
    model: Path | str,
    cohort_file: Path | str,
    scan_folder: Path | str,
    console: IO[str],
) -> str:
    """Write cohort.json; for a screened cohort, keep the trunks that its scan generated.

    Returns when the oldest of them was begun.
    """
    cohort = Cohort(cohort_name, settings["cohort"])
    problems = candidates(cohort, load_problems(dataset, answer_kind(settings["dataset"])))
    determines = [settings, code, sha256_file(dataset), software_versions()]
    workspace = Workspace(scan_folder, determines)
    finished = workspace.path("finished")
    finished.mkdir(exist_ok=True)
    if screen := settings["cohort"]["screen"]:
        generator = TrunkGenerator(workspace, model, settings)
        generator.check_context(problems)
        with progress(console, f"screen {cohort_name}", len(problems), "problem") as bar:
            looked_at = scan(
                problems,
                lambda problem: (bar.update(), generator.rollouts(problem))[1],
                # Its transcripts are enough to go on after a crash; its state is big.
                lambda problem: remove_state(generator.kv_piece(problem.index)),
                settings["cohort"]["n"],
                screen["grader"],
            )
        for entry in looked_at:
            if entry["admitted"]:
                piece, state = generator.piece(entry["index"]), generator.kv_piece(entry["index"])
                link_state(state, finished / state.name)
                write_json(finished / piece.name, workspace.load(piece.name))
        kept = (workspace.load(generator.piece(entry["index"]).name) for entry in looked_at)
        write_json(finished / "engine.json", distinct(piece["engine"] for piece in kept))
    else:
        looked_at = fixed(problems)
    seal_folder(finished)
    publish_folder(finished, scan_folder)
    write_json(cohort_file, cohort_report(cohort, looked_at))
    return workspace.began
