"""`make bench`: how the graders' time grows with a text that repeats what their patterns look for.

Prints, for each grader, the slowest repetition at 5,000 and 20,000 characters: four times the time
is linear, sixteen times quadratic. Nothing is asserted here.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow" / "scripts"))
GOLD = {"strict": 18.0, "published": 18.0, "choice": "B", "yes-no": "yes"}
UNITS = [
    "Answer:", "answer is ", " ", "\n", r"\boxed{", "{", "}", "{}", "####", "#### ", "#", "$", "*",
    "_", "\\", "yes", "B", ":", "1", "123", "12,", "1 ", "1/", ",", ".", "-", "=", "/", "x", "(",
    "<", r"\frac", "q", "Question", "so", "Answer:\n",
]  # fmt: skip
STARTS = ["", "Answer: ", "Question", "1", r"\boxed{"]
SIZES = (5_000, 20_000)


def seconds(grader: str, text: str) -> float:
    from replay.grading import grade

    started = time.process_time()
    grade(grader, text, GOLD[grader], "stop")
    return time.process_time() - started


def main() -> None:
    print("| grader | slowest repetition | 5,000 | 20,000 | growth |\n|---|---|---:|---:|---:|")
    for grader in GOLD:
        times = {}
        for start in STARTS:
            for unit in UNITS:
                texts = [start + unit * (size // len(unit)) + "!" for size in SIZES]
                times[start, unit] = [seconds(grader, text) for text in texts]
        worst = max(times, key=lambda case: times[case][1])
        short, long = times[worst]
        growth = long / short if short else float("inf")
        print(f"| {grader} | {worst!r} | {short:.4f} s | {long:.4f} s | {growth:.0f} |")


if __name__ == "__main__":
    main()
