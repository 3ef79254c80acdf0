"""The decode-time KV state as a file: saved when a trunk ends, restored into a later engine.

One safetensors file a problem and tensor-parallel rank. Each entry is a layer, block index first;
the metadata names the token ids that the blocks stand for and a sha256 a block. An exact pass
resumed from such a file takes the engine's own prefix-cache path: no connector, no patched source.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors import safe_open

from replay.storage import link

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
