"""`make bench`: engine start, speed of a pass, and what it is worth.

    python tests/bench/bench.py [--config config/gpu.yaml] [--configuration main] [--profile FILE]

Runs the passes of one problem of a configuration: against the same requests handed to vLLM
directly, and against the time that the memory's bandwidth alone would take. Prints a Markdown table
with the machine that it was measured on; nothing is asserted here. `--profile` writes where Python
spends its time in one pass, and on a GPU which kernels take it, which shows the whole engine where
it runs in-process.
"""

import argparse
import cProfile
import math
import os
import pstats
import statistics
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))
REPEATS = 5  # after one that warms up
COPIED = 2**29  # bytes that are copied to measure the memory's bandwidth
SHORT = {"max_tokens": 24, "probe_tokens": 24}


def main() -> None:
    from replay.engine import device_name
    from replay.passes import _parameters, plan, run_problem
    from replay.prompts import load_tokenizer
    from replay.protocol import PASSES
    from replay.storage import Workspace
    from replay.trunks import TrunkGenerator

    options = arguments()
    row, model, problem = configured(options)
    sampling, settings = row.sections["continuations"], row.sections["engine"]
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder) / "trunks", "bench")
        generator = TrunkGenerator(workspace, model, row.trunk_sets[0].settings)
        rows = generator.rollouts(problem)
        engine = generator.engine
        special = set(load_tokenizer(model).all_special_ids)
        work = plan(rows, "bench", generator.kv_piece(problem.index), row.sections, special)
        prompts = [{"prompt_token_ids": request.prompt} for request in work.requests]
        parameters = [_parameters(engine, request, sampling) for request in work.requests]
        plain = [vllm_parameters(request, sampling) for request in work.requests]
        seconds, ours, direct, results = [], [], [], []
        for _ in range(1 + REPEATS):
            started = time.monotonic()
            results.append(run_problem(engine, work, sampling, list(PASSES), lambda done: None))
            seconds.append(time.monotonic() - started)
            done = chain.from_iterable(results[-1]["passes"].values())
            ours.append(sum(len(r["token_ids"]) for r in done) / seconds[-1])
            started = time.monotonic()
            outputs = engine.llm.generate(prompts, plain, use_tqdm=False)
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            direct.append(tokens / (time.monotonic() - started))
        del seconds[0], ours[0], direct[0], results[0]
        if options.profile:
            profile(
                options.profile,
                lambda: engine.generate([r.prompt for r in work.requests], parameters),
            )
            short = [_parameters(engine, r, sampling | SHORT) for r in work.requests]
            kernels(options.profile, lambda: engine.llm.generate(prompts, short, use_tqdm=False))
        per_token = bytes_per_token(work)
        engine.close()
    print(f"Measured on {device_name(settings['device'])}, {os.cpu_count()} CPUs")
    print(f"{row.name} of {options.config}, {row.model}, {row.numerics}, {settings['process']}\n")
    print("| what | value |\n|---|---|")
    print(f"| engine start, import included | {engine.start_seconds:.1f} s |")
    print(
        f"| passes of {len(prompts)} requests, with restore and rows | {_spread(ours)} tokens/s |"
    )
    print(f"| such requests handed to vLLM and its own sampler | {_spread(direct)} tokens/s |")
    print(f"| ours over direct | {statistics.median(ours) / statistics.median(direct):.3f} |")
    minutes = statistics.median(seconds) / 60
    print(f"| pivots a minute, all passes | {len(work.pivots) / minutes:.0f} |")
    speed = memory_bandwidth(settings["device"])
    print(f"| memory bandwidth, read and written | {speed / 1e9:.0f} GB/s |")
    for name in PASSES:
        took = statistics.median(result["seconds"][name] for result in results)
        done = results[0]["passes"][name]
        tokens = sum(len(r["token_ids"]) for r in done)
        least = least_bytes(work, done, model, per_token, settings["max_num_seqs"])
        print(
            f"| {name} | {tokens / took:.0f} tokens/s, "
            f"{100 * least / speed / took:.1f}% of the bandwidth limit |"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "config" / "config.yaml")
    parser.add_argument("--configuration", default="main")
    parser.add_argument("--profile", type=Path)
    return parser.parse_args()


def configured(options):
    """The configuration, its checkpoint, and the first problem of its dataset."""
    from replay.config import load_study, read_config
    from replay.datasets import answer_kind, load_problems

    row = load_study(read_config(options.config)).configurations[options.configuration]
    model = ROOT / "resources" / "models" / row.model
    dataset = ROOT / "resources" / "datasets" / f"{row.dataset}.jsonl"
    for path in (model, dataset):
        if not path.exists():
            raise SystemExit(
                f"{path} is missing; run `snakemake --cores 1 {path.relative_to(ROOT)}`"
            )
    return row, model, load_problems(dataset, answer_kind(row.trunk_sets[0].settings["dataset"]))[0]


def vllm_parameters(request, sampling: dict):
    """The request as vLLM's own seeded sampler takes it."""
    from vllm import SamplingParams

    from replay.protocol import PROBE

    if request.k == PROBE:
        probe = sampling["probe_tokens"]
        return SamplingParams(temperature=0, max_tokens=probe, logprobs=2, detokenize=False)
    names = ("temperature", "top_p", "max_tokens")
    own = {name: sampling[name] for name in names}
    return SamplingParams(**own, seed=request.seed, detokenize=False)


def profile(path: Path, action) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(action)
    with path.open("w", encoding="utf-8") as file:
        pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(60)


def kernels(path: Path, action) -> None:
    """Append where the device spends its time; of a short run, since each launch is an event."""
    import torch
    from torch import profiler

    if not torch.cuda.is_available():
        return
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=activities) as recorded:
        action()
    with path.open("a", encoding="utf-8") as file:
        averages = recorded.key_averages()
        for order in ("self_cuda_time_total", "self_cpu_time_total"):
            file.write(averages.table(sort_by=order, row_limit=40, max_name_column_width=90))


def bytes_per_token(work) -> float:
    """Bytes of KV state a token, from the problem's own state file."""
    from replay.kv_state import read_description, unique_blocks

    state = read_description(work.kv_path)
    blocks = len(unique_blocks(state.sequences, state.block_size)[0])
    return work.kv_path.stat().st_size / (blocks * state.block_size)


def least_bytes(work, rows: list[dict], model: Path, per_token: float, width: int) -> float:
    """Bytes that decoding must read: weights once a step, each token's context once.

    As many steps as the longest request or full batches of `width` requests need, whichever is
    more; `per_token` bytes of KV state.
    """
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    lengths = [len(row["token_ids"]) for row in rows]
    steps = max(max(lengths), math.ceil(sum(lengths) / width))
    contexts = sum(
        n * (len(request.prompt) + n / 2) for request, n in zip(work.requests, lengths, strict=True)
    )
    return steps * weights + contexts * per_token


def memory_bandwidth(device: str) -> float:
    """Bytes a second, read and written, of a large copy; the best of ten."""
    import torch

    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(10):
        started = time.monotonic()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.monotonic() - started)
    return 2 * COPIED / best


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    main()
