"""vLLM's scheduler, with what an audit needs: blocks, preemptions, and restored state.

Plugged in through vLLM's own `scheduler_cls`; imported only where an engine starts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import hash_block_tokens, make_block_hash_with_group_id
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from replay.kv_state import KVStateError, unique_blocks

GROUP = 0  # the one KV-cache group of a dense decoder


@dataclass(frozen=True)
class FinishedRequest:
    preemptions: int
    block_ids: list[int]


class ReplayScheduler(Scheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.finished: dict[str, FinishedRequest] = {}

    def _free_blocks(self, request: Request) -> None:
        # num_cached_tokens is set at the first prefill only: a preempted request is recomputed
        # and still reports a hit, so its preemptions are kept beside it.
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[GROUP]
        self.finished[request.request_id] = FinishedRequest(request.num_preemptions, list(blocks))
        super()._free_blocks(request)

    def _block_hashes(self, sequences: list[list[int]]) -> list:
        """Hashes of `unique_blocks(sequences)`, as this process salts them."""
        hash_function = get_hash_fn_by_name(self.cache_config.prefix_caching_hash_algo)
        hashes: dict[tuple[int, ...], bytes] = {}
        for prefix in unique_blocks(sequences, self.block_size)[0]:
            parent = hashes.get(prefix[: -self.block_size])
            hashes[prefix] = hash_block_tokens(
                hash_function, parent, prefix[-self.block_size :], None
            )
        return list(hashes.values())

    def resident_blocks(self, sequences: list[list[int]]) -> list[int]:
        """Block ids that a request would hit, for `unique_blocks(sequences)` in order.

        Blocks with equal hashes are not de-duplicated by vLLM: the oldest is the one hit.
        Those that are no longer cached are left out.
        """
        pool = self.kv_cache_manager.block_pool
        found = [pool.get_cached_block(h, [GROUP]) for h in self._block_hashes(sequences)]
        return [blocks[GROUP].block_id for blocks in found if blocks]

    def restore_blocks(
        self, sequences: list[list[int]], load: Callable[[list[int]], object]
    ) -> list[int]:
        """Give the sequences' blocks to `load` to fill, then enter them in the prefix cache.

        Returns their ids, for `unique_blocks(sequences)` in order.
        """
        pool = self.kv_cache_manager.block_pool
        hashes = self._block_hashes(sequences)
        if len(hashes) > pool.get_num_free_blocks():
            raise KVStateError(
                f"the state takes {len(hashes)} blocks, the cache has "
                f"{pool.get_num_free_blocks()}; raise engine.kv_cache_gib"
            )
        blocks = pool.get_new_blocks(len(hashes))
        block_ids = [block.block_id for block in blocks]
        try:
            load(block_ids)
            for block_hash, block in zip(hashes, blocks, strict=True):
                block.block_hash = make_block_hash_with_group_id(block_hash, GROUP)
                pool.cached_block_hash_to_block.insert(block.block_hash, block)
        finally:
            pool.free_blocks(reversed(blocks))
        return block_ids
