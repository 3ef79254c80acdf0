"""`make bench`: engine start, and a pass against handing the same requests to vLLM directly.

Prints a Markdown table with the machine that it was measured on; nothing is asserted here.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))
REPEATS = 3


def main() -> None:
    import yaml

    from replay.config import load_study
    from replay.datasets import load_problems
    from replay.engine import device_name
    from replay.passes import _parameters, plan, run_problem
    from replay.prompts import load_tokenizer
    from replay.protocol import PASSES
    from replay.storage import Workspace
    from replay.trunks import TrunkGenerator

    def read(name):
        return yaml.safe_load((ROOT / "config" / name).read_text(encoding="utf-8"))

    study = load_study(read("catalog.yaml") | read("config.yaml"))
    main_row = study.configurations["main"]
    model = ROOT / "resources" / "models" / main_row.model
    if not model.is_dir():
        raise SystemExit(f"{model} is missing; run `make demo` first")
    problem = load_problems(ROOT / "resources" / "datasets" / f"{main_row.dataset}.jsonl")[0]
    sampling = main_row.sections["continuations"]
    with tempfile.TemporaryDirectory() as folder:
        generator = TrunkGenerator(
            Workspace(Path(folder) / "trunks", "bench"), model, main_row.trunk_sets[0].settings
        )
        rows = generator.rollouts(problem)
        engine = generator.engine
        special = set(load_tokenizer(model).all_special_ids)
        work = plan(rows, "bench", generator.kv_piece(problem.index), main_row.sections, special)
        prompts = [{"prompt_token_ids": request.prompt} for request in work.requests]
        ours, direct = [], []
        for _ in range(REPEATS):
            started = time.monotonic()
            run_problem(engine, work, sampling, lambda done: None)
            ours.append((time.monotonic() - started) / len(PASSES))
            started = time.monotonic()
            for _ in PASSES:
                parameters = [_parameters(engine, request, sampling) for request in work.requests]
                engine.llm.generate(prompts, parameters, use_tqdm=False)
            direct.append((time.monotonic() - started) / len(PASSES))
        engine.close()
    ratio = statistics.median(ours) / statistics.median(direct)
    print(f"Measured on {device_name('cpu')}, {os.cpu_count()} CPUs, {main_row.model}\n")
    print("| what | seconds |\n|---|---|")
    print(f"| engine start, import included | {engine.start_seconds:.1f} |")
    print(f"| a pass of {len(prompts)} requests, with restore and rows | {_spread(ours)} |")
    print(f"| the same requests handed to vLLM directly | {_spread(direct)} |")
    print(f"| ratio of the medians | {ratio:.3f} |")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
