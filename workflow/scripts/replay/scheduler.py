"""vLLM's scheduler, with what an audit needs: blocks, preemptions, and restored state.

Plugged in through vLLM's own `scheduler_cls`; imported only where an engine starts. It may live in
another process than the `Engine` that talks to it: a request can carry a call (`extra_args`), and
what a finished request has to say travels in `kv_transfer_params`, the field that vLLM keeps for
what a scheduler tells about a request's KV state.
"""

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import hash_block_tokens, make_block_hash_with_group_id
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from replay.kv_state import unique_blocks

GROUP = 0  # the one KV-cache group of a dense decoder
CALL = "replay_call"  # key of `SamplingParams.extra_args`: [method, arguments]


class ReplayScheduler(Scheduler):
    """Scheduler that answers calls and reports each finished request's blocks and preemptions."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.undefined: set[str] = set()  # requests that had a NaN among their logits

    def update_from_output(self, scheduler_output, model_runner_output) -> dict:
        # Before tokens are taken over: the sampler makes a token of NaN as of any other number.
        nans = model_runner_output.num_nans_in_logits or {}
        self.undefined |= {request for request, count in nans.items() if count}
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> dict:
        # num_cached_tokens is set at the first prefill only: a preempted request is recomputed
        # and still reports a hit, so its preemptions are kept beside it.
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[GROUP]
        facts = {
            "preemptions": request.num_preemptions,
            "block_ids": list(blocks),
            "undefined": request.request_id in self.undefined,
        }
        super()._free_request(request, delay_free_blocks)
        # A call is answered after its own request is gone: a block that it took shows as missing.
        call = (request.sampling_params.extra_args or {}).get(CALL)
        return getattr(self, call[0])(*call[1]) if call else facts

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

    def prefix_caching(self) -> dict:
        """Whether it is on; a backend can turn it off after the configuration was accepted."""
        return {"on": self.kv_cache_manager.enable_caching}

    def resident_blocks(self, sequences: list[list[int]]) -> dict:
        """Block ids that a request would hit, for `unique_blocks(sequences)` in order.

        Blocks with equal hashes are not de-duplicated by vLLM: the oldest is the one hit.
        Those that are no longer cached are left out.
        """
        pool = self.kv_cache_manager.block_pool
        found = [pool.get_cached_block(h, [GROUP]) for h in self._block_hashes(sequences)]
        return {"block_ids": [blocks[GROUP].block_id for blocks in found if blocks]}

    def adopt_blocks(self, sequences: list[list[int]]) -> dict:
        """Enter free blocks in the prefix cache for the sequences; their content is to follow.

        Returns their ids, for `unique_blocks(sequences)` in order, or `needed` and `free` numbers
        of blocks when they do not fit.
        """
        pool = self.kv_cache_manager.block_pool
        hashes = self._block_hashes(sequences)
        if len(hashes) > pool.get_num_free_blocks():
            return {"needed": len(hashes), "free": pool.get_num_free_blocks()}
        blocks = pool.get_new_blocks(len(hashes))
        for block_hash, block in zip(hashes, blocks, strict=True):
            block.block_hash = make_block_hash_with_group_id(block_hash, GROUP)
            pool.cached_block_hash_to_block.insert(block.block_hash, block)
        pool.free_blocks(reversed(blocks))
        return {"block_ids": [block.block_id for block in blocks]}


class AsyncReplayScheduler(ReplayScheduler, AsyncScheduler):
    """The same for an engine that schedules a step while the one before it runs."""
