"""Runs of the workflow killed at chosen moments of their work, and what they leave behind."""

import glob
import os
import random
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIECES = "*/*/.0-of-1.unfinished/*/*.json"
# What can be seen once a rule has come so far: a pattern, how many files, and the seconds after
# that within which it is killed.
MOMENTS = {
    "trunks": [
        ("logs/trunks/primary_*/0-of-1.log", 1, 15.0),  # reads its input, starts its engine
        ("trunks/primary_*/.0-of-1.unfinished/*/*.json", 1, 2.0),
        ("trunks/primary_*/.0-of-1.unfinished/*/*.json", 2, 0.2),
        ("trunks/primary_*/.0-of-1.unfinished/*/finished", 1, 0.05),
        ("trunks/primary_*/0-of-1", 1, 2.0),  # published, not yet noted as done
    ],
    "passes": [
        ("logs/passes/main/0-of-1.log", 1, 15.0),
        ("passes/main/.0-of-1.unfinished/*/*.json", 1, 3.0),
        ("passes/main/.0-of-1.unfinished/*/*.json", 2, 3.0),
        ("passes/main/.0-of-1.unfinished/*/finished", 1, 0.05),
        ("passes/main/0-of-1", 1, 2.0),
    ],
    "grade": [
        ("logs/grade/main.log", 1, 3.0),
        ("grades/main/*.jsonl", 1, 0.05),
        ("grades/main/SHA256SUMS", 1, 1.0),
    ],
    "analyze": [("logs/analyze/main.log", 1, 2.0), ("analysis/main.json", 1, 0.5)],
}


@dataclass(frozen=True)
class Moment:
    rule: str
    pattern: str
    count: int
    delay: float  # seconds

    def has_come(self, results: Path) -> bool:
        return len(found(results, self.pattern)) >= self.count


def found(results: Path, pattern: str) -> list[Path]:
    """`Path.glob` fails where a folder goes while it looks; this one does not."""
    return [results / path for path in glob.glob(pattern, root_dir=results)]


def choose(rule: str, generator: random.Random) -> Moment:
    pattern, count, within = generator.choice(MOMENTS[rule])
    return Moment(rule, pattern, count, generator.uniform(0, within))


class Killed:
    """A run that is killed again and again; `pieces` maps each finished piece to its file times.

    A problem that is computed again has a piece with a second time.
    """

    def __init__(self, command: list[str], folder: Path, results: Path):
        self.command, self.folder, self.results = command, folder, results
        self.pieces: dict[Path, set[int]] = defaultdict(set)

    def attempt(self, moment: Moment | None = None) -> bool:
        """Run until `moment`, then kill -9 all of it; false when it ended before."""
        output = self.folder / f"{self.results.name}.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                self.command, cwd=self.folder, start_new_session=True, stdout=file, stderr=file
            )
            due = None
            while process.poll() is None and not (due and time.monotonic() >= due):
                self._look()
                if moment and not due and moment.has_come(self.results):
                    due = time.monotonic() + moment.delay
                time.sleep(0.02)
            killed = process.poll() is None
            if killed:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert killed or process.returncode == 0, output.read_text()
        self._look()
        return killed

    def _look(self) -> None:
        for piece in found(self.results, PIECES):
            try:
                self.pieces[piece].add(piece.stat().st_mtime_ns)
            except FileNotFoundError:  # the run has succeeded and dropped it
                continue


def killed_runs(finished, kills: int, generator: random.Random) -> Iterator[int]:
    """Runs until there were so many kills, each killed in some rules; yields kills a run."""
    number, done = 0, 0
    while done < kills:
        chosen = generator.sample(list(MOMENTS), k=min(kills - done, len(MOMENTS)))
        rules = sorted(chosen, key=list(MOMENTS).index)
        of_run = killed_run(finished, f"killed{number}", rules, generator)
        number, done = number + 1, done + of_run
        yield of_run


def killed_run(finished, run: str, rules: list[str], generator: random.Random) -> int:
    """A run killed once in each of `rules`, ended, and compared; returns the number of kills.

    `finished` is the checkout of an undisturbed run (tiny_run).
    """
    kept = ("screen",) if "trunks" in rules else ("screen", "trunks")
    config, options = finished.copied(run, *kept)
    results = finished.folder / "results" / run
    command = finished.command("main", *options, config=config)
    killed, kills = Killed(command, finished.folder, results), 0
    for moment in [choose(rule, generator) for rule in rules]:
        before = len(killed.pieces)
        if killed.attempt(moment):
            kills += 1
            print(f"{run}: killed at {moment}; pieces: {before}, then {len(killed.pieces)}")
    killed.attempt()
    problems = len(finished.read(finished.results / "passes/main/0-of-1/seconds.json"))
    if "trunks" in rules:
        problems += len(list(finished.results.glob("trunks/*_stock_*/0-of-1/kv/*")))
    assert len(killed.pieces) == problems >= 3
    assert all(len(times) == 1 for times in killed.pieces.values()), "a problem was computed twice"
    assert not list(results.glob("*/*/.*.unfinished"))
    finished.assert_same(
        run, "trunks/*_stock_*/0-of-1/trunks.jsonl", "passes/main/0-of-1/*.jsonl",
        "grades/main/*.jsonl", "records/main.json", "analysis/main.json",
    )  # fmt: skip
    return kills
