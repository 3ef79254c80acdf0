"""What is added to vLLM's worker, which owns the KV tensors, by its own `worker_extension_cls`."""

import gc
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from replay.kv_state import KVStateError, rank_file, read_blocks, read_description
from replay.storage import atomic_path, not_written

LINEAR_ROWS = 32


def block_dimension(kv_cache: torch.Tensor, num_blocks: int) -> int:
    """Axis of a layer's cache that counts blocks: 0, or 1 where keys and values come first."""
    shape = tuple(kv_cache.shape)
    if shape[:2] == (2, num_blocks):
        return 1
    if shape[0] == num_blocks:
        return 0
    raise KVStateError(f"no axis of a KV cache of shape {shape} counts {num_blocks} blocks")


def block_digests(layers: list[torch.Tensor]) -> list[str]:
    """sha256 of each block over all layers; `layers` are contiguous, block index first."""
    parts = [layer.view(torch.uint8).numpy() for layer in layers]

    def digest(block: int) -> str:
        sha = hashlib.sha256()
        for part in parts:
            sha.update(part[block])
        return sha.hexdigest()

    with ThreadPoolExecutor() as pool:  # hashlib lets go of the interpreter's lock
        return list(pool.map(digest, range(len(parts[0]))))


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


class WorkerExtension:
    """Methods called by `LLM.collective_rpc`, on every worker."""

    def _num_blocks(self) -> int:
        return self.model_runner.kv_cache_config.num_blocks

    def read_kv_blocks(self, block_ids: list[int]) -> list[torch.Tensor]:
        layers = []
        for kv_cache in self.model_runner.kv_caches:
            axis = block_dimension(kv_cache, self._num_blocks())
            index = torch.tensor(block_ids, device=kv_cache.device)
            layers.append(kv_cache.index_select(axis, index).movedim(axis, 0).contiguous().cpu())
        return layers

    def save_kv_blocks(self, block_ids: list[int], metadata: dict[str, str], path: str) -> None:
        """Write this rank's part of the blocks, over all layers."""
        layers = self.read_kv_blocks(block_ids)
        metadata = metadata | {"sha256": json.dumps(block_digests(layers))}
        tensors = {f"layer.{i}": layer for i, layer in enumerate(layers)}
        with atomic_path(rank_file(path, self.rank)) as partial:
            try:
                save_file(tensors, partial, metadata=metadata)
            except SafetensorError as error:
                raise KVStateError(not_written(path, error)) from error

    def load_kv_blocks(self, block_ids: list[int], path: str) -> list[str]:
        """Write this rank's blocks into the cache; the sha256 of each, as the cache then holds it.

        Raises KVStateError when the file or what is read back is not what was saved.
        """
        state, path = path, str(rank_file(path, self.rank))
        if read_description(path) != read_description(state):
            raise KVStateError(f"{path}: not of the same state as {state}; delete both and rerun")
        layers, expected = read_blocks(path)
        depth = len(self.model_runner.kv_caches)
        if len(layers) != depth:
            raise KVStateError(f"{path}: holds {len(layers)} layers, the model has {depth}")
        for layer, ours in zip(layers, self.read_kv_blocks(block_ids[:1]), strict=True):
            found, taken = (
                (layer.dtype, len(layer), *layer.shape[1:]),
                (ours.dtype, len(block_ids), *ours.shape[1:]),
            )
            if found != taken:
                raise KVStateError(
                    f"{path}: its layers are {found}, the cache takes {taken}; delete it and rerun"
                )
        self._verify(block_digests(layers), expected, f"{path}: the file is damaged")
        for kv_cache, layer in zip(self.model_runner.kv_caches, layers, strict=True):
            axis = block_dimension(kv_cache, self._num_blocks())
            index = torch.tensor(block_ids, device=kv_cache.device)
            kv_cache.index_copy_(axis, index, layer.to(kv_cache.device).movedim(0, axis))
        restored = block_digests(self.read_kv_blocks(block_ids))
        self._verify(restored, expected, f"{path}: the cache does not hold what was restored")
        return restored

    def digest_kv_blocks(self, block_ids: list[int]) -> list[str]:
        """A sha256 of each block, as this rank's part of the cache holds it."""
        return block_digests(self.read_kv_blocks(block_ids))

    def fill_kv_cache(self, value: float) -> None:
        """Overwrite the whole cache, so that a test can prove that nothing resident is left."""
        for kv_cache in self.model_runner.kv_caches:
            kv_cache.fill_(value)

    @staticmethod
    def _verify(found: list[str], expected: list[str], what: str) -> None:
        bad = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
        if bad:
            raise KVStateError(f"{what}: block {bad[0]} ({len(bad)} in all); delete it and rerun")

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
