"""KV state and passes of a 7B model's shape on one or several GPUs, with random weights.

    python tests/bench/tensor_parallel.py generate FOLDER --ranks 2   # trunks, state, exact pass
    python tests/bench/tensor_parallel.py replay FOLDER --ranks 2     # in a new process

`generate` writes one problem's trunks and KV state and runs the exact pass on the resident state.
`replay` restores the state, runs all passes, and compares the restored exact pass with the resident
one and the passes with each other, on every token and logprob. Both print rates. The weights are
random, so nothing is downloaded, and the text is noise: this measures the engine, the disk and the
bus, not a model. FOLDER/model needs tokenizer files with a chat template; they are taken from
--tokenizer.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))
QWEN25_7B = {  # the shape of Qwen2.5-7B-Instruct
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu", "attention_dropout": 0.0,
    "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645,
    "torch_dtype": "bfloat16", "use_cache": True, "initializer_range": 0.02,
}  # fmt: skip
COMPARED = ("token_ids", "logprobs", "finish_reason")


def main() -> None:
    options = arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    {"generate": generate, "replay": replay}[options.step](options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["generate", "replay"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel GPUs")
    parser.add_argument("--numerics", choices=["stock", "batch-invariant"], default="stock")
    parser.add_argument("--eager", action="store_true", help="no compilation, no CUDA graphs")
    parser.add_argument("--model", type=Path, help="a real checkpoint instead of random weights")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument(
        "--layers", type=int, default=28, help="fewer, to try it on a small machine"
    )
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="tokens a trunk and continuation")
    default = ROOT / "resources" / "models" / "smollm2-135m"
    parser.add_argument("--tokenizer", type=Path, default=default)
    return parser.parse_args()


def prepare(options):
    """Resolved settings and the checkpoint's folder."""
    from replay.config import load_study, with_catalog

    engine = {"device": options.device, "tensor_parallel": options.ranks}
    if options.device == "cpu":
        engine |= {"max_model_len": 1024, "max_num_batched_tokens": 1024, "kv_cache_gib": 1}
    config = {
        "run": "bench",
        "model": "bench",
        "models": {"bench": {"source": "local", "path": "."}},
        "cohorts": {"bench": {"dataset": "word-problems", "start": 0, "n": 1}},
        "numerics": options.numerics,
        "engine": engine | {"compile": not options.eager},
        "trunks": {"rollouts": options.rollouts, "max_tokens": options.tokens},
        "continuations": {"max_tokens": options.tokens},
        "configurations": {"bench": {"cohorts": ["bench"]}},
    }
    study = load_study(with_catalog(config))
    return study.configurations["bench"], options.model or random_model(options)


def random_model(options) -> Path:
    folder = options.folder / "model"
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (options.tokenizer / name).exists():
            shutil.copy(options.tokenizer / name, folder / name)
    shape = QWEN25_7B | {"num_hidden_layers": options.layers}
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


def start(options, configuration, model):
    from replay.engine import Engine
    from replay.storage import Workspace
    from replay.trunks import TrunkGenerator

    generator = TrunkGenerator(
        Workspace(options.folder / "trunks", "bench"), model, configuration.trunk_sets[0].settings
    )
    load_format = "auto" if options.model else "dummy"
    generator.engine = Engine(model, configuration.sections["engine"], load_format)
    if not options.model:
        generator.engine.llm.collective_rpc(draw_weights)
    return generator


def draw_weights(worker) -> None:
    """Weights at a trained model's scale, seeded by name and rank.

    vLLM's own dummy weights are so small that attention adds nothing to what it is added to: no
    logprob would tell one KV state from another.
    """
    import zlib

    import torch

    for name, weight in worker.model_runner.model.named_parameters():
        generator = torch.Generator(weight.device)
        generator.manual_seed(zlib.crc32(f"{name}|{worker.rank}".encode()))
        if "norm" in name:
            weight.data.fill_(1.0)
        else:
            weight.data.normal_(0.0, 0.02, generator=generator)


def planned(generator, configuration, rows):
    from replay.passes import plan

    special = set(generator.tokenizer.all_special_ids)
    return plan(rows, "bench", generator.kv_piece(0), configuration.sections, special)


def generate(options) -> None:
    from replay.datasets import load_problems
    from replay.kv_state import read_description
    from replay.passes import _completion_row, _parameters

    configuration, model = prepare(options)
    generator = start(options, configuration, model)
    engine, sampling = generator.engine, configuration.sections["continuations"]
    problem = load_problems(ROOT / "workflow" / "data" / "word-problems.jsonl", "number")[0]
    rows, seconds = timed(lambda: generator._generate(problem, generator.kv_piece(0)))
    tokens = sum(len(row["token_ids"]) for row in rows)
    work = planned(generator, configuration, rows)
    parameters = [_parameters(engine, request, sampling) for request in work.requests]
    prompts = [request.prompt for request in work.requests]
    done, exact_seconds = timed(lambda: engine.generate(prompts, parameters))
    resident = [_completion_row(0, r, c) for r, c in zip(work.requests, done, strict=True)]
    state = read_description(generator.kv_piece(0))
    generator.engine.reset()
    write(options, "rows", rows)
    write(options, "resident", resident)
    report(
        options,
        engine,
        {
            "trunk_tokens": tokens,
            "trunk_tokens_per_s": tokens / seconds,
            "exact_requests": len(resident),
            "exact_tokens_per_s": sum(len(r["token_ids"]) for r in resident) / exact_seconds,
            "state_gb": size(generator, state.ranks) / 1e9,
        },
    )
    engine.close()


def replay(options) -> None:
    from replay.kv_state import read_description, unique_blocks
    from replay.passes import run_problem
    from replay.protocol import PASSES

    configuration, model = prepare(options)
    generator = start(options, configuration, model)
    engine, path = generator.engine, generator.kv_piece(0)
    work = planned(generator, configuration, read(options, "rows"))
    sampling = configuration.sections["continuations"]
    result = run_problem(engine, work, sampling, list(PASSES), lambda done: None)
    passes = result["passes"]
    tokens = {name: sum(len(r["token_ids"]) for r in rows) for name, rows in passes.items()}
    state = read_description(path)
    gigabytes = size(generator, state.ranks) / 1e9
    _, restoring = timed(lambda: engine.restore_kv(path))
    restored = {"restore_gb_per_s": gigabytes / restoring}
    again = options.folder / "again.safetensors"
    _, saving = timed(lambda: engine.save_kv(state.sequences, again))
    blocks = len(unique_blocks(state.sequences, state.block_size)[0])
    report(
        options,
        engine,
        {
            **{f"{name}_tokens_per_s": tokens[name] / s for name, s in result["seconds"].items()},
            **restored,
            "save_gb_per_s": gigabytes / saving,
            "state_gb": gigabytes,
            "blocks": blocks,
            "requests": len(work.requests),
            "restored_equals_resident": same(read(options, "resident"), passes["exact1"]),
            "exact2_equals_exact1": same(passes["exact1"], passes["exact2"]),
            "refeed_equals_exact1": same(passes["exact1"], passes["refeed"]),
            "resumed": sum(row["resumed"] for row in passes["exact1"]),
        },
    )
    engine.close()
    report(options, None, limits(options, int(gigabytes * 1e9)))


def same(one: list[dict], other: list[dict]) -> str:
    equal = sum(
        all(a[name] == b[name] for name in COMPARED) for a, b in zip(one, other, strict=True)
    )
    return f"{equal} of {len(one)}"


def size(generator, ranks: int) -> int:
    from replay.kv_state import rank_file

    return sum(rank_file(generator.kv_piece(0), rank).stat().st_size for rank in range(ranks))


def limits(options, count: int) -> dict:
    """What the disk, the hash and the bus do on their own with as many bytes, GB/s."""
    import hashlib

    import torch

    data, path = os.urandom(count), options.folder / "raw"

    def write_raw():
        with path.open("wb") as file:
            file.write(data)
            os.fsync(file.fileno())

    _, writing = timed(write_raw)
    _, reading = timed(path.read_bytes)
    _, hashing = timed(lambda: hashlib.sha256(data).digest())
    found = {"disk_write": writing, "disk_read_cached": reading, "sha256": hashing}
    if options.device == "cuda":
        host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        device = host.cuda()
        torch.cuda.synchronize()
        _, found["host_to_device"] = timed(lambda: (device.copy_(host), torch.cuda.synchronize()))
        _, found["device_to_host"] = timed(lambda: (host.copy_(device), torch.cuda.synchronize()))
    path.unlink()
    return {f"{name}_gb_per_s": count / 1e9 / seconds for name, seconds in found.items()}


def timed(action):
    started = time.monotonic()
    result = action()
    return result, time.monotonic() - started


def write(options, name: str, value) -> None:
    (options.folder / f"{name}.json").write_text(json.dumps(value))


def read(options, name: str):
    return json.loads((options.folder / f"{name}.json").read_text())


def report(options, engine, values: dict) -> None:
    facts = {"step": options.step, "ranks": options.ranks, "numerics": options.numerics}
    if engine is not None:
        facts |= {"start_s": engine.start_seconds} | {
            name: engine.facts()[name]
            for name in ("device", "attention_backend", "flash_attn_version", "cuda_graphs")
        }
    print("BENCH " + json.dumps(facts | values), flush=True)


if __name__ == "__main__":
    main()
