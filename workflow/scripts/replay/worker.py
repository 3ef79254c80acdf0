"""What is added to vLLM's worker, through its own `worker_extension_cls`."""

import gc
from collections.abc import Callable

import torch

from replay.kv_state import KVWorkerExtension

LINEAR_ROWS = 32


def in_fixed_rows(linear: Callable, rows: int = LINEAR_ROWS) -> Callable:
    """`linear(x, weight, bias)` computed on exactly `rows` rows at a time, the last padded.

    A CPU's matrix product takes other tiles for other numbers of rows (oneDNN with AMX does), so
    a token's result depends on how many tokens share its step. With the shape fixed it does not.
    """

    def fixed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        padding = -len(flat) % rows
        padded = torch.nn.functional.pad(flat, (0, 0, 0, padding))
        parts = [linear(part, weight, bias) for part in padded.split(rows)]
        return torch.cat(parts)[: len(flat)].reshape(*x.shape[:-1], -1)

    return fixed


class WorkerExtension(KVWorkerExtension):
    """Methods called by `LLM.collective_rpc`, on every worker."""

    def pin_linear_rows(self) -> int:
        """Make every matrix product of a CPU model independent of the batch; returns how many."""
        layers = [m for m in self.model_runner.model.modules() if hasattr(m, "cpu_linear")]
        for layer in layers:
            layer.cpu_linear = in_fixed_rows(layer.cpu_linear)
        self.linear_rows = LINEAR_ROWS
        return len(layers)

    def keep_what_is_there(self) -> None:
        """Nothing of it is garbage before the process ends, whose last look for some took seconds.

        vLLM does so in the process of its engine, and not in its workers.
        """
        gc.freeze()

    def numerics_in_force(self) -> dict:
        """What computes this worker's attention and matrix products, and whether it caches."""
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        version = next((v for x in layers if (v := _flash_attn_version(x)) is not None), None)
        return {
            "attention_backend": self.model_runner.attn_groups[0][0].backend.get_name(),
            "flash_attn_version": version,
            "threads": torch.get_num_threads(),
            "linear_rows": getattr(self, "linear_rows", "as batched"),
            "prefix_caching": self.vllm_config.cache_config.enable_prefix_caching,
        }


def _flash_attn_version(layer) -> int | None:
    return getattr(getattr(layer, "impl", None), "vllm_flash_attn_version", None)
