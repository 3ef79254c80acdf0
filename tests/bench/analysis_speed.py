"""`make bench`: the whole analysis of 1e3 to 1e6 synthetic records, and the published run.

Prints Markdown; nothing is asserted here. Each size runs in a process of its own, whose peak memory
includes the records. The published run is timed where its record files have been downloaded.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PROBLEMS, K = 500, 4


def records(n: int) -> list[dict]:
    """Pivots with the fields of the paper's first campaign; two in five have a nonzero estimate."""
    draw = np.random.default_rng(0)
    exact = draw.integers(-K, K + 1, n) * (draw.random(n) < 0.4)

    def again(share: float) -> list[float]:
        moved = exact + draw.integers(-1, 2, n) * (draw.random(n) < share)
        return (np.clip(moved, -K, K) / K).tolist()

    columns = {
        "problem_id": (np.arange(n) % PROBLEMS).tolist(),
        "rollout": [0] * n,
        "abs_pos": (16 * (np.arange(n) // PROBLEMS) + draw.integers(0, 3, n)).tolist(),
        "gen_index": [0] * n,
        "margin": (draw.integers(0, 16, n) / 16).tolist(),
        "rollout_correct": [1] * n,
        "A_exact1": (exact / K).tolist(),
        "A_exact2": again(0.2),
        "A_refeed": again(0.5),
    }
    for name, share in (("exact2", 0.3), ("refeed", 0.95)):
        differs = draw.random(n) < share
        columns[f"greedy_divergence_{name}"] = differs.tolist()
        columns[f"greedy_first_logprob_delta_{name}"] = (differs * draw.random(n)).tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def measure(n: int) -> None:
    from replay.analysis import analyze
    from replay.beyond import beyond

    rows = records(n)
    started = time.monotonic()
    analyze(rows, K)
    beyond(rows, K)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {n:,} | {seconds:.1f} | {peak:.2f} |", flush=True)


def published() -> None:
    downloads = ROOT / "resources" / "published"
    if not list(downloads.glob("*.json")):
        print(f"\nPublished run not timed: no record file in {downloads.relative_to(ROOT)}.")
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "published.yaml"
        config.write_text(
            f"run: published\npublished: {{records_dir: '{downloads}', download: false}}\n"
        )
        started = time.monotonic()
        subprocess.run(
            [
                sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"),
                "--workflow-profile", str(ROOT / "profiles" / "default"), "--cores", "1",
                "published", "--configfile", str(config), "--quiet", "all",
            ],
            cwd=folder, check=True,
        )  # fmt: skip
        print(f"\nPublished run: {time.monotonic() - started:.0f} s after download, one core.")


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(int(sys.argv[1]))
    else:
        print(f"| records, {PROBLEMS} problems, K = {K} | seconds | peak GiB |\n|---:|---:|---:|")
        sys.stdout.flush()
        for size in SIZES:
            subprocess.run([sys.executable, __file__, str(size)], check=True)
        published()
