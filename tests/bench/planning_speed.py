"""`make bench`: how long Snakemake plans a grid of 64 shards and 100 configurations.

Prints Markdown; nothing is asserted here. CPU time says more than wall time on a busy machine.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SHARDS, CONFIGURATIONS = 64, 100


def grid(shards: int, configurations: int) -> dict:
    """A configuration file in which only K differs from row to row."""
    return {
        "run": "grid",
        "model": "smollm2-135m",
        "shards": shards,
        "cohorts": {"c": {"dataset": "word-problems", "start": 0, "n": 128}},
        "engine": {"max_model_len": 2048},
        "configurations": {
            f"k{k}": {"cohorts": ["c"], "continuations": {"k": k}}
            for k in range(1, configurations + 1)
        },
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "grid.yaml"
        config.write_text(yaml.safe_dump(grid(SHARDS, CONFIGURATIONS)))
        started = time.monotonic()
        result = subprocess.run(
            [sys.executable, "-m", "snakemake", "-n", "--cores", "8", "all",
             "--configfile", str(config)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        wall = time.monotonic() - started
    jobs = next(line for line in result.stdout.splitlines() if line.startswith("total")).split()[1]
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    print("| planning (`snakemake -n all`) | jobs | s | CPU s |\n|---|---:|---:|---:|")
    print(f"| {SHARDS} shards, {CONFIGURATIONS} configurations | {jobs} | {wall:.1f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
