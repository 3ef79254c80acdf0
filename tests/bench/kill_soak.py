"""kill -9 at seeded moments of trunks, passes, grade and analyze, many times, on the real engine.

    python tests/bench/kill_soak.py 32 --seed 1

Each run is killed in every rule once, ended by the same command and compared with an undisturbed
run, byte by byte; a problem that was computed twice ends the soak (tests/integration/kills.py).
"""

import argparse
import fcntl
import os
import random
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "workflow" / "scripts"), str(ROOT / "tests" / "integration")]

from kills import killed_runs  # noqa: E402
from tiny_run import Checkout  # noqa: E402


@contextmanager
def turn(lock: Path):
    """One engine at a time on a machine that others use: their lock."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    time.sleep(1)  # who waits for the lock gets it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lock", type=Path, default=os.devnull, help="held while a run lasts")
    arguments = parser.parse_args()
    started, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        finished = Checkout(ROOT, Path(folder), ROOT / "resources" / "models" / "smollm2-135m")
        finished.snakemake("--touch", "resources/models/smollm2-135m")
        with turn(arguments.lock):
            finished.snakemake("main")
        runs = killed_runs(finished, arguments.kills, random.Random(arguments.seed))
        while done < arguments.kills:
            with turn(arguments.lock):
                done += next(runs)
            print(f"{done} kills, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
