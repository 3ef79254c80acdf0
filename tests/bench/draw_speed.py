"""Time of a draw on a GPU, and whether its kernel draws what its definition draws.

    python tests/bench/draw_speed.py

Random logits of the shape of a step, in bfloat16 as a model gives them; medians of 15 launches.
"""

import statistics
import sys
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow" / "scripts"))
DEVICE, REPEATS, BATCHES, ROWS = "cuda", 15, 60, 256
VOCABULARIES = {"SmolLM2": 49152, "Qwen2.5": 152064}
SHAPES = ((1024, 4), (1024, 8), (2048, 8), (2048, 16), (4096, 16))  # block, warps


def main() -> None:
    from replay import sampling

    if not torch.cuda.is_available():
        raise SystemExit("a CUDA GPU is needed: the kernel runs on nothing else")
    from replay import sampling_kernel as kernel

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{differing(sampling, kernel)} of {BATCHES * ROWS} draws differ\n")
    shapes = " | ".join(f"{block}, {warps} warps" for block, warps in SHAPES)
    print(f"| vocabulary | rows | as operations, ms | {shapes} |")
    print("|---|---:|---:|" + "---:|" * len(SHAPES))
    for (name, size), rows in product(VOCABULARIES.items(), (32, 160, ROWS)):
        logits, arguments = inputs(rows, size, 3.0, seed=1)
        times = [median_ms(sampling.name_winners, logits, arguments)]
        for kernel.BLOCK, kernel.WARPS in SHAPES:
            times.append(median_ms(kernel.name_winners, logits, arguments))
        print(f"| {name} | {rows} | {' | '.join(f'{time:.3f}' for time in times)} |")


def inputs(rows: int, vocabulary: int, spread: float, seed: int, top_p=0.95, temperature=0.7):
    """Logits, and the other arguments of `name_winners`, on the device."""
    from replay.sampling import noise_streams

    generator = torch.Generator(DEVICE).manual_seed(seed)
    logits = torch.randn(rows, vocabulary, device=DEVICE, generator=generator) * spread
    numbers = torch.arange(rows)
    streams = noise_streams(numbers + 10007 * seed, torch.tensor(3))
    settings = (torch.full((rows,), x, dtype=torch.float64) for x in (temperature, top_p))
    arguments = [values.to(DEVICE) for values in (numbers, *settings, streams)]
    return logits.bfloat16().float(), arguments


def differing(sampling, kernel) -> int:
    """Draws of the kernel that are not those of the definition, on the same device."""
    count = 0
    for seed in range(BATCHES):
        spread, top_p = (0.3, 1.0, 2.0, 4.0)[seed % 4], (0.5, 0.95, 0.99, 1.0)[seed // 4 % 4]
        logits, arguments = inputs(ROWS, VOCABULARIES["SmolLM2"], spread, seed, top_p)
        expected = sampling.draw(logits, *arguments[1:])
        kernel.name_winners(logits, *arguments)
        count += int((logits.argmax(1) != expected).sum())
    return count


def median_ms(function, logits: torch.Tensor, arguments: list) -> float:
    times = []
    for _ in range(1 + REPEATS):  # the first one compiles
        fresh = logits.clone()  # a draw changes its logits
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        function(fresh, *arguments)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
