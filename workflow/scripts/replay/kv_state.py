"""The decode-time KV state as a file: saved when a trunk ends, restored into a later engine.

One safetensors file a problem and tensor-parallel rank. Each entry is a layer, block index first;
the metadata names the token ids that the blocks stand for and a sha256 a block. An exact pass
resumed from such a file takes the engine's own prefix-cache path: no connector, no patched source.
"""

import hashlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors import SafetensorError, safe_open

from replay.storage import atomic_path, link, not_written

if TYPE_CHECKING:  # importing it takes seconds, and who only names or links states does without
    import torch

FORMAT = "kv-state/2"


class KVStateError(RuntimeError):
    """A KV state that cannot be saved, or that is not what its file says."""


class Description(NamedTuple):
    """What a KV state file says it holds."""

    sequences: list[list[int]]  # the token ids that the blocks stand for
    block_size: int
    ranks: int  # tensor-parallel ranks, one file each


def rank_file(path: Path | str, rank: int) -> Path:
    """Where a rank keeps its part of the state `path`; rank 0's is `path` itself."""
    path = Path(path)
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def remove_state(path: Path) -> None:
    """Remove the files of a state, all ranks; nothing where it is gone already."""
    ranks = read_description(path).ranks if path.exists() else 0
    for rank in reversed(range(ranks)):  # the first says how many there are
        rank_file(path, rank).unlink(missing_ok=True)


def link_state(source: Path, target: Path) -> None:
    """Give the files of a state, all ranks, a second name."""
    for rank in range(read_description(source).ranks):
        link(rank_file(source, rank), rank_file(target, rank))


def block_dimension(kv_cache: "torch.Tensor", num_blocks: int) -> int:
    """Axis of a layer's cache that counts blocks: 0, or 1 where keys and values come first."""
    shape = tuple(kv_cache.shape)
    if shape[:2] == (2, num_blocks):
        return 1
    if shape[0] == num_blocks:
        return 0
    raise KVStateError(f"no axis of a KV cache of shape {shape} counts {num_blocks} blocks")


def block_digests(layers: "list[torch.Tensor]") -> list[str]:
    """sha256 of each block over all layers; `layers` are contiguous, block index first."""
    import torch

    parts = [layer.view(torch.uint8).numpy() for layer in layers]

    def digest(block: int) -> str:
        sha = hashlib.sha256()
        for part in parts:
            sha.update(part[block])
        return sha.hexdigest()

    with ThreadPoolExecutor() as pool:  # hashlib lets go of the interpreter's lock
        return list(pool.map(digest, range(len(parts[0]))))


class KVWorkerExtension:
    """Methods added to the worker, which owns the KV tensors; called by `LLM.collective_rpc`."""

    def _num_blocks(self) -> int:
        return self.model_runner.kv_cache_config.num_blocks

    def read_kv_blocks(self, block_ids: list[int]) -> "list[torch.Tensor]":
        import torch

        layers = []
        for kv_cache in self.model_runner.kv_caches:
            axis = block_dimension(kv_cache, self._num_blocks())
            index = torch.tensor(block_ids, device=kv_cache.device)
            layers.append(kv_cache.index_select(axis, index).movedim(axis, 0).contiguous().cpu())
        return layers

    def save_kv_blocks(self, block_ids: list[int], metadata: dict[str, str], path: str) -> None:
        """Write this rank's part of the blocks, over all layers."""
        from safetensors.torch import save_file

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
        import torch

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


def unique_blocks(
    sequences: list[list[int]], block_size: int
) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """Full blocks of token sequences, each named once by the whole prefix that it ends.

    Returns the prefixes in first-seen order, and for each sequence the row of each of its blocks.
    """
    rows: dict[tuple[int, ...], int] = {}
    of_sequence = []
    for tokens in sequences:
        prefixes = (tuple(tokens[:end]) for end in range(block_size, len(tokens) + 1, block_size))
        of_sequence.append([rows.setdefault(prefix, len(rows)) for prefix in prefixes])
    return list(rows), of_sequence


def describe(sequences: list[list[int]], block_size: int, ranks: int = 1) -> dict[str, str]:
    """Safetensors metadata of a state."""
    return {
        "format": FORMAT,
        "block_size": str(block_size),
        "ranks": str(ranks),
        "sequences": json.dumps(sequences, separators=(",", ":")),
    }


def read_blocks(path: Path | str) -> "tuple[list[torch.Tensor], list[str]]":
    """The layers of a state file, block index first, and the sha256 that it names for each block.

    Raises KVStateError when these do not belong together.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            digests = json.loads(file.metadata()["sha256"])
            layers = [file.get_tensor(f"layer.{i}") for i in range(len(file.keys()))]
    except Exception as error:  # a header with a flipped bit fails in many ways
        raise KVStateError(f"{path}: the file is damaged ({error}); delete it and rerun") from error
    if {len(layer) for layer in layers} != {len(digests)}:
        raise KVStateError(
            f"{path}: the file is damaged: layers of other blocks; delete it and rerun"
        )
    return layers, digests


def block_bytes(path: Path | str) -> float:
    """Bytes that one block takes over all layers of one rank."""
    prefixes, _ = unique_blocks(*read_description(path)[:2])
    with Path(path).open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    return (Path(path).stat().st_size - header) / max(len(prefixes), 1)


def gib(size: float) -> str:
    """Bytes as GiB, rounded up to thousandths."""
    return f"{math.ceil(size / 2**30 * 1000) / 1000:.3f}"


def read_description(path: Path | str) -> Description:
    """What a KV state file says it holds; KVStateError when it is not such a file."""
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
        if metadata.get("format") == FORMAT:
            return Description(
                json.loads(metadata["sequences"]),
                int(metadata["block_size"]),
                int(metadata["ranks"]),
            )
    except Exception as error:  # safetensors raises its own type for a truncated file
        raise KVStateError(
            f"{path}: not a readable KV state ({error}); delete it and rerun"
        ) from error
    raise KVStateError(f"{path}: format {metadata.get('format')!r}, expected {FORMAT!r}")
