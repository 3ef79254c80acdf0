"""The KV state file: what it says it holds, and how damage is found. No engine."""

import json
import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from replay.kv_state import (
    KVStateError,
    describe,
    link_state,
    read_description,
    remove_state,
    unique_blocks,
)
from replay.worker import WorkerExtension, block_digests, block_dimension

BLOCKS, BLOCK_SIZE, HEADS, WIDTH = 6, 4, 2, 8


class Worker(WorkerExtension):
    """The extension on caches of our own making, laid out as an attention backend would."""

    def __init__(self, layout, layers=3, rank=0):
        self.rank = rank
        shape = {
            "keys first": (2, BLOCKS, HEADS, BLOCK_SIZE, WIDTH),
            "block first": (BLOCKS, 2, BLOCK_SIZE, HEADS, WIDTH),
        }[layout]
        self.model_runner = self
        self.kv_cache_config = self
        self.num_blocks = BLOCKS
        self.kv_caches = [torch.randn(shape).to(torch.bfloat16) for _ in range(layers)]


@pytest.mark.parametrize("layout", ["keys first", "block first"])
def test_saved_blocks_come_back_bit_for_bit_elsewhere(tmp_path, layout):
    worker, path = Worker(layout), str(tmp_path / "kv.safetensors")
    before = worker.read_kv_blocks([4, 1])
    worker.save_kv_blocks([4, 1], describe([[1] * 8], BLOCK_SIZE), path)
    worker.fill_kv_cache(3.0)
    worker.load_kv_blocks([2, 5], path)
    after = worker.read_kv_blocks([2, 5])
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    untouched = worker.read_kv_blocks([0, 1, 3, 4])
    assert all(torch.all(layer == 3.0) for layer in untouched)


def test_the_file_is_laid_out_block_first_with_a_digest_a_block(tmp_path):
    worker, path = Worker("keys first"), tmp_path / "kv.safetensors"
    worker.save_kv_blocks([0, 3], describe([[1, 2, 3, 4, 5, 6, 7, 8]], BLOCK_SIZE), str(path))
    layers = load_file(path)
    assert sorted(layers) == ["layer.0", "layer.1", "layer.2"]
    assert layers["layer.0"].shape == (2, 2, HEADS, BLOCK_SIZE, WIDTH)
    assert read_description(path) == ([[1, 2, 3, 4, 5, 6, 7, 8]], BLOCK_SIZE, 1)


def test_two_blocks_on_two_blocks_is_still_read_as_keys_first():
    assert block_dimension(torch.zeros(2, 2, 4), 2) == 1
    with pytest.raises(KVStateError, match="counts 5 blocks"):
        block_dimension(torch.zeros(2, 3, 4), 5)


def test_a_flipped_bit_is_found_and_its_block_named(tmp_path):
    worker, path = Worker("keys first"), tmp_path / "kv.safetensors"
    worker.save_kv_blocks([0, 3], describe([[0] * 8], BLOCK_SIZE), str(path))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # last byte: last layer, last block
    path.write_bytes(data)
    with pytest.raises(KVStateError, match="the file is damaged: block 1"):
        worker.load_kv_blocks([1, 2], str(path))


def test_a_cache_that_does_not_take_the_blocks_is_found(tmp_path):
    worker, path = Worker("block first"), tmp_path / "kv.safetensors"
    worker.save_kv_blocks([0, 3], describe([[0] * 8], BLOCK_SIZE), str(path))
    read = worker.read_kv_blocks
    worker.read_kv_blocks = lambda ids: [layer + 1 for layer in read(ids)]
    with pytest.raises(KVStateError, match="the cache does not hold what was restored"):
        worker.load_kv_blocks([1, 2], str(path))


def test_another_models_state_is_refused(tmp_path):
    path = str(tmp_path / "kv.safetensors")
    Worker("block first", layers=3).save_kv_blocks([0], describe([[0] * 4], BLOCK_SIZE), path)
    with pytest.raises(KVStateError, match="holds 3 layers, the model has 2"):
        Worker("block first", layers=2).load_kv_blocks([1], path)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"])
def test_an_unreadable_file_is_named(tmp_path, content):
    path = tmp_path / "kv.safetensors"
    path.write_bytes(content)
    with pytest.raises(KVStateError, match=r"kv\.safetensors: not a readable KV state"):
        read_description(path)


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata={"format": "pt"})
    with pytest.raises(KVStateError, match="expected 'kv-state/2'"):
        read_description(path)


def test_blocks_are_named_by_their_whole_prefix():
    one, other = [1, 2, 3, 4, 5], [1, 2, 9, 4]
    prefixes, rows = unique_blocks([one, other], 2)
    assert prefixes == [(1, 2), (1, 2, 3, 4), (1, 2, 9, 4)]
    assert rows == [[0, 1], [0, 2]]


def test_digests_cover_every_layer():
    layers = [torch.zeros(2, 3), torch.zeros(2, 3)]
    before = block_digests(layers)
    layers[1][1, 0] = 1
    after = block_digests(layers)
    assert before[0] == after[0] and before[1] != after[1]
    assert json.dumps(after)


def test_every_rank_keeps_its_own_part(tmp_path):
    path, moved = tmp_path / "kv.safetensors", tmp_path / "elsewhere" / "kv.safetensors"
    workers = [Worker("block first", rank=rank) for rank in range(3)]
    before = [worker.read_kv_blocks([4, 1]) for worker in workers]
    for worker in workers:
        worker.save_kv_blocks([4, 1], describe([[1] * 8], BLOCK_SIZE, ranks=3), str(path))
        worker.fill_kv_cache(3.0)
    link_state(path, moved)
    assert sorted(file.name for file in moved.parent.iterdir()) == [
        "kv.rank1.safetensors", "kv.rank2.safetensors", "kv.safetensors",
    ]  # fmt: skip
    for worker, layers in zip(workers, before, strict=True):
        worker.load_kv_blocks([2, 5], str(moved))
        after = worker.read_kv_blocks([2, 5])
        assert all(torch.equal(a, b) for a, b in zip(layers, after, strict=True))
    assert not torch.equal(before[0][0], before[1][0])
    remove_state(moved)
    remove_state(moved)
    assert not list(moved.parent.iterdir())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"kv\.rank1\.safetensors: not a readable KV state"),
        (b"cut off", r"kv\.rank1\.safetensors: not a readable KV state"),
        ([[2] * 8], r"kv\.rank1\.safetensors: not of the same state as .*kv\.safetensors"),
    ],
)
def test_a_rank_without_its_part_of_the_state_names_the_file(tmp_path, content, says):
    path, workers = tmp_path / "kv.safetensors", [Worker("block first", rank=r) for r in (0, 1)]
    for worker, sequences in zip(workers, ([[1] * 8], content), strict=True):
        if isinstance(sequences, list):
            worker.save_kv_blocks([4, 1], describe(sequences, BLOCK_SIZE, ranks=2), str(path))
    if isinstance(content, bytes):
        path.with_name("kv.rank1.safetensors").write_bytes(content)
    workers[0].load_kv_blocks([2, 5], str(path))
    with pytest.raises(KVStateError, match=says):
        workers[1].load_kv_blocks([2, 5], str(path))


SEQUENCES = [[1, 2, 3, 4, 5, 6, 7, 8]]


def restore(path):
    """What a cache of eight other blocks holds after the state was restored to two of them."""
    worker = Worker("block first")
    worker.load_kv_blocks([2, 5], str(path))
    return worker.read_kv_blocks([2, 5])


@settings(max_examples=300)
@given(st.data())
def test_any_flipped_bit_is_an_error_or_is_without_effect(tmp_path_factory, data):
    """Header and blocks; what the header says of transcripts is compared with them by `plan`."""
    worker, path = Worker("block first"), tmp_path_factory.mktemp("kv") / "kv.safetensors"
    worker.save_kv_blocks([4, 1], describe(SEQUENCES, BLOCK_SIZE), str(path))
    before = worker.read_kv_blocks([4, 1])
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    last = data.draw(st.sampled_from([header, len(content)])) - 1
    content[data.draw(st.integers(0, last))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        after = restore(path)
        described = read_description(path)
    except KVStateError as error:
        assert str(path) in str(error)
    else:
        same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert same or described != (SEQUENCES, BLOCK_SIZE, 1)


@settings(max_examples=50)
@given(st.data())
def test_a_truncated_file_is_named(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("kv") / "kv.safetensors"
    Worker("block first").save_kv_blocks([4, 1], describe(SEQUENCES, BLOCK_SIZE), str(path))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(KVStateError, match=r"kv\.safetensors: not a readable KV state"):
        restore(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.view(torch.float16),
        lambda layer: layer.movedim(-1, -2).contiguous(),
        lambda layer: torch.cat([layer, layer]),
        lambda layer: layer[:1],
    ],
)
def test_layers_of_another_type_or_shape_are_refused(tmp_path, change):
    """Also where the bytes, and so their digests, are the same."""
    path = tmp_path / "kv.safetensors"
    layers = [change(layer) for layer in Worker("block first").read_kv_blocks([4, 1])]
    metadata = describe(SEQUENCES, BLOCK_SIZE) | {"sha256": json.dumps(block_digests(layers))}
    save_file({f"layer.{i}": layer for i, layer in enumerate(layers)}, path, metadata=metadata)
    with pytest.raises(KVStateError, match=r"kv\.safetensors: its layers are .*the cache takes"):
        restore(path)


def test_blocks_overwritten_after_they_were_restored_are_known(tmp_path):
    worker, path = Worker("keys first"), str(tmp_path / "kv.safetensors")
    worker.save_kv_blocks([4, 1], describe(SEQUENCES, BLOCK_SIZE), path)
    before = worker.load_kv_blocks([2, 5], path)
    assert worker.digest_kv_blocks([2, 5]) == before
    worker.kv_caches[1][0, 5, 0, 0, 0] += 1  # one number of one layer of the second block
    first, second = worker.digest_kv_blocks([2, 5])
    assert first == before[0] and second != before[1]


def test_a_full_disk_names_the_state_and_leaves_no_part_of_it(tmp_path):
    worker, path = Worker("block first"), tmp_path / "kv.safetensors"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(KVStateError, match=r"kv\.safetensors: cannot be written .*make room"):
            worker.save_kv_blocks([4, 1], describe(SEQUENCES, BLOCK_SIZE), str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
