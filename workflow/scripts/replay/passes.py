"""Replay passes (paper section 3.2, and its controls): what each has in the cache, and its runs."""

import math
import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO

import numpy as np

from replay.engine import Blocks, Completion, Contents, Engine, located, software_versions
from replay.job import progress
from replay.kv_state import KVStateError, block_bytes, gib, read_description, unique_blocks
from replay.pivots import Pivot, select_pivots
from replay.prompts import load_tokenizer
from replay.protocol import ARMS, CATALOGUE, PROBE, Pass
from replay.storage import (
    Workspace,
    check_folder,
    distinct,
    publish_folder,
    read_jsonl,
    seal_folder,
    sha256_file,
    write_json,
    write_jsonl,
)
from replay.trunks import kv_file, resumable, stable_seed

Tokens = list[int]
# Mean number of requests that arrive between two steps of a staggered pass.
ARRIVALS_A_STEP = 4


@dataclass(frozen=True)
class Request:
    """One continuation (k is a number) or one greedy probe (k is `greedy`) of one arm."""

    rollout: int
    abs_pos: int
    arm: str
    k: int | str
    seed: int
    prompt: Tokens
    text_prompt: Tokens | None = None  # the prompt decoded and tokenised again

    def identity(self) -> dict:
        prompts = ("prompt", "text_prompt")
        return {name: value for name, value in asdict(self).items() if name not in prompts}

    def prompts(self) -> list[Tokens]:
        return [self.prompt] if self.text_prompt is None else [self.prompt, self.text_prompt]

    def prompt_of(self, kind: Pass) -> Tokens:
        return self.text_prompt if kind.prompt == "text" else self.prompt


@dataclass(frozen=True)
class Work:
    """The pivots of one problem and the requests that every pass submits for them, in order."""

    problem_id: int
    cohort: str
    kv_path: Path
    pivots: list[dict]
    requests: list[Request]

    def prefixes(self, block_size: int) -> list[Tokens]:
        """Of each rollout with pivots, the tokens up to the block boundary of its last pivot."""
        last = {request.rollout: request for request in self.requests}
        cuts = (request.prompt[: _aligned(request, block_size)] for request in last.values())
        return [tokens for tokens in cuts if tokens]


def _aligned(request: Request, block_size: int) -> int:
    return request.abs_pos // block_size * block_size


def plan(
    rows: list[dict],
    cohort: str,
    kv_path: Path,
    settings: dict,
    special_tokens: Container[int],
    retokenise: Callable[[Tokens], Tokens] | None = None,
) -> Work:
    """Pivots and requests of one problem, from its trunk rows, in the published order.

    For each rollout and pivot: the actual arm's K continuations and its probe, then the
    alternative's. Seeds are the published hash, so all passes receive the same randomness.
    `retokenise` is given where a pass takes text: it decodes tokens and tokenises them again.
    """
    problem_id = rows[0]["problem_id"]
    pivots, requests = [], []
    for row in rows:
        tokens = row["prompt_token_ids"] + row["token_ids"]
        for pivot in select_pivots(
            row["token_ids"],
            row["topk"],
            len(row["prompt_token_ids"]),
            block_size=row["block_size"],
            special_tokens=special_tokens,
            **settings["pivots"],
        ):
            pivots.append(_pivot_row(row, cohort, pivot))
            if retokenise:
                pivots[-1]["text_changed"] = {}
            for arm, forced in zip(
                ARMS, (pivot.sampled_token, pivot.alternative_token), strict=True
            ):
                prompt = tokens[: pivot.abs_pos] + [forced]
                text_prompt = retokenise(prompt) if retokenise else None
                if retokenise:
                    pivots[-1]["text_changed"][arm] = text_prompt != prompt
                for k in [*range(settings["continuations"]["k"]), PROBE]:
                    seed = stable_seed(problem_id, row["rollout"], pivot.abs_pos, arm, k)
                    requests.append(
                        Request(row["rollout"], pivot.abs_pos, arm, k, seed, prompt, text_prompt)
                    )
    _check_state(rows, kv_path)
    return Work(problem_id, cohort, kv_path, pivots, requests)


def _pivot_row(row: dict, cohort: str, pivot: Pivot) -> dict:
    owners = row["block_owners"][: pivot.abs_pos // row["block_size"]]
    following = pivot.gen_index + 1
    return {
        "problem_id": row["problem_id"],
        "cohort": cohort,
        "rollout": row["rollout"],
        **pivot.as_dict(),
        "block_size": row["block_size"],
        "borrowed_blocks": sum(owner != row["rollout"] for owner in owners),
        "block_owners": owners,
        # What the trunk itself recorded where the probes start; None where the rollout ends.
        "next_topk": row["topk"][following] if following < len(row["topk"]) else None,
    }


def _check_state(rows: list[dict], kv_path: Path) -> None:
    """The KV state must stand for exactly these transcripts."""
    expected = [
        resumable(row["prompt_token_ids"] + row["token_ids"], row["block_size"]) for row in rows
    ]
    if read_description(kv_path).sequences != expected:
        raise KVStateError(
            f"{kv_path}: holds the state of other transcripts than {rows[0]['problem_id']}'s; "
            "delete the trunks and rerun"
        )


def check_context(works: list[Work], settings: dict) -> None:
    """Refuse continuations that would not fit into `engine.max_model_len` (ValueError)."""
    limit = settings["engine"]["max_model_len"]
    requests = (request for work in works for request in work.requests)
    longest = max((len(p) for request in requests for p in request.prompts()), default=0)
    sampling = settings["continuations"]
    needed = longest + max(sampling["max_tokens"], sampling["probe_tokens"])
    if needed > limit:
        raise ValueError(
            f"engine.max_model_len is {limit}, but the longest prefix ({longest} tokens) and "
            f"continuations.max_tokens ({sampling['max_tokens']}) take {needed}"
        )


def check_memory(works: list[Work], settings: dict) -> None:
    """Refuse a KV cache that cannot hold a problem's trunks and one of its requests.

    The size comes from the saved state, so that no engine is started for it. Raises KVStateError
    naming the problem and the sizes in GiB: needed, and enough for nothing to be evicted while all
    requests of a batch run at once.
    """
    for work in works:
        size_gib, batch = settings["engine"]["kv_cache_gib"], settings["engine"]["max_num_seqs"]
        state, size = read_description(work.kv_path), block_bytes(work.kv_path)
        trunks = 1 + len(unique_blocks(state.sequences, state.block_size)[0])  # one is vLLM's own
        own = _own_blocks(work.requests, settings["continuations"], state.block_size)
        if size * (trunks + own[0]) > size_gib * 2**30:
            raise KVStateError(
                f"engine.kv_cache_gib is {size_gib}, but problem {work.problem_id}'s trunks "
                f"({work.kv_path}) and one request take {gib(size * (trunks + own[0]))}; with "
                f"{gib(size * (trunks + sum(own[:batch])))} all that run at once fit"
            )


def _own_blocks(requests: list[Request], sampling: dict, block_size: int) -> list[int]:
    """Blocks that each request takes besides the restored ones, most first."""
    sampled = max(sampling["max_tokens"], sampling["probe_tokens"])
    return sorted(
        (
            math.ceil((max(map(len, request.prompts())) + sampled) / block_size)
            - request.abs_pos // block_size
            for request in requests
        ),
        reverse=True,
    )


def pass_order(passes: list[str], order: str, problem_id: int) -> list[str]:
    """The order in which a problem's passes run: as `listed`, or a seeded permutation."""
    if order == "listed":
        return list(passes)
    generator = np.random.default_rng(stable_seed(problem_id, "pass order"))
    return [passes[place] for place in generator.permutation(len(passes))]


def arrivals(problem_id: int, name: str, requests: int) -> list[int]:
    """How many requests arrive before each step of a staggered pass: a seeded Poisson process."""
    generator = np.random.default_rng(stable_seed(problem_id, name))
    times = np.cumsum(generator.exponential(1 / ARRIVALS_A_STEP, requests))
    return np.bincount(times.astype(int)).tolist()


def run_problem(
    engine: Engine, work: Work, sampling: dict, order: list[str], tick: Callable[[int], None]
) -> dict:
    """Run the passes in this order, each on the cache state that it asks for.

    Passes on restored state that follow each other share one restore, as the paper's do. Returns
    rows per pass under `passes`, wall times in seconds under `seconds`, and the `order`. `tick` is
    told after each pass how many requests are done.
    """
    result: dict = {"passes": {}, "seconds": {}, "order": order}
    before, blocks, contents = None, {}, {}
    for name in order:
        kind = CATALOGUE[name]
        if (before, kind.state) != ("restored", "restored"):
            blocks, contents = prepare(engine, work, kind.state)
        before = kind.state
        started = time.monotonic()
        with located(f"problem {work.problem_id}, pass {name}"):
            completions = _generate(engine, work, name, sampling)
        result["seconds"][name] = time.monotonic() - started
        after = engine.contents(blocks)
        blocks = {p: block for p, block in blocks.items() if after[p] == contents[p]}
        result["passes"][name] = [
            _completion_row(work.problem_id, request, completion)
            | {"resumed": resumed(request, completion, blocks, engine.block_size)}
            for request, completion in zip(work.requests, completions, strict=True)
        ]
        tick(len(work.requests))
    return result


def prepare(engine: Engine, work: Work, state: str) -> tuple[Blocks, Contents]:
    """Bring the cache into a state; returns the blocks that it then holds, and their contents."""
    if state == "restored":
        return engine.restore_kv(work.kv_path)
    if state == "prefilled":
        blocks = engine.prefill_kv(work.prefixes(engine.block_size))
        return blocks, engine.contents(blocks)
    engine.reset()
    return {}, {}


def _generate(engine: Engine, work: Work, name: str, sampling: dict) -> list[Completion]:
    kind = CATALOGUE[name]
    prompts = [request.prompt_of(kind) for request in work.requests]
    parameters = [_parameters(engine, request, sampling) for request in work.requests]
    if kind.admission == "staggered":
        return engine.generate(prompts, parameters, arrivals(work.problem_id, name, len(prompts)))
    if kind.admission == "engine":
        return engine.generate(prompts, parameters)
    completions = []
    for prompt, parameter in zip(prompts, parameters, strict=True):
        if not kind.warm:
            engine.reset()  # each request is then a function of itself only
        completions += engine.generate([prompt], [parameter])
    return completions


def resumed(request: Request, completion: Completion, blocks: Blocks, block_size: int) -> bool:
    """Whether the request's blocks up to the pivot are those that were there before the pass.

    A hit alone does not say so: after an eviction one request recomputes the prefix, and the next
    hits that copy. `blocks` maps token prefixes to ids of blocks that were restored or prefilled,
    and that the pass left as they were.
    """
    ends = range(block_size, request.abs_pos + 1, block_size)
    expected = [blocks.get(tuple(request.prompt[:end])) for end in ends]
    return completion.block_ids[: len(expected)] == expected


def _parameters(engine: Engine, request: Request, sampling: dict):
    if request.k == PROBE:
        return engine.greedy(max_tokens=sampling["probe_tokens"], logprobs=2)
    return engine.sampled(
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        max_tokens=sampling["max_tokens"],
        seed=request.seed,
    )


def _completion_row(problem_id: int, request: Request, completion: Completion) -> dict:
    logprobs = completion.logprobs and [
        position[token]
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    return {
        "problem_id": problem_id,
        **request.identity(),
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "num_cached_tokens": completion.num_cached_tokens,
        "preemptions": completion.preemptions,
        "logprobs": logprobs,
    }


def run(
    cohorts: list[str],
    settings: dict,
    code: str,
    trunk_folders: list[str],
    model: Path | str,
    folder: Path | str,
    console: IO[str],
) -> str:
    """Run every pass over the trunks of one shard; `folder` appears when all problems are done.

    `trunk_folders` are those of `cohorts`, in the same order. A finished problem is a piece of
    the workspace and is not run again after a crash. With no pivot no engine starts. Returns when
    the oldest of them was begun.
    """
    for trunks in trunk_folders:
        check_folder(trunks)
    tokenizer, passes = load_tokenizer(model), settings["passes"]
    special = set(tokenizer.all_special_ids)
    from_text = any(CATALOGUE[name].prompt == "text" for name in passes)
    retokenise = partial(retokenised, tokenizer) if from_text else None
    works = [
        plan(rows, cohort, kv_file(trunks, rows[0]["problem_id"]), settings, special, retokenise)
        for cohort, trunks in zip(cohorts, trunk_folders, strict=True)
        for rows in rollouts_by_problem(trunks)
    ]
    check_context(works, settings)
    busy = [work for work in works if work.requests]
    check_memory(busy, settings)
    hashes = [sha256_file(Path(trunks) / "trunks.jsonl") for trunks in trunk_folders]
    workspace = Workspace(folder, [settings, code, cohorts, hashes, software_versions()])
    kept = {_piece(work) for work in busy if workspace.has(_piece(work))}  # reads each whole
    print(
        f"{len(kept)} finished problems are kept, {len(busy) - len(kept)} are to be run", flush=True
    )
    total = len(passes) * sum(len(work.requests) for work in busy)
    engine = None
    with progress(console, f"passes {Path(folder).parent.name}", total, "request") as bar:
        for work in busy:
            if _piece(work) in kept:
                bar.update(len(passes) * len(work.requests))
                continue
            engine = engine or Engine(model, settings["engine"])
            order = pass_order(passes, settings["pass_order"], work.problem_id)
            result = run_problem(engine, work, settings["continuations"], order, bar.update)
            workspace.save(_piece(work), result | {"engine": engine.facts()})
    finished = workspace.path("finished")
    write_jsonl(finished / "pivots.jsonl", (pivot for work in works for pivot in work.pivots))
    pieces = [workspace.load(_piece(work)) for work in busy]
    for name in passes:
        rows = (row for piece in pieces for row in piece["passes"][name])
        write_jsonl(finished / f"{name}.jsonl", rows)
    write_json(finished / "engine.json", distinct(piece["engine"] for piece in pieces))
    write_json(
        finished / "seconds.json",
        [
            {"problem_id": work.problem_id, "requests": len(work.requests)} | piece["seconds"]
            for work, piece in zip(busy, pieces, strict=True)
        ],
    )
    write_json(
        finished / "order.json",
        [
            {"problem_id": work.problem_id, "order": piece["order"]}
            for work, piece in zip(busy, pieces, strict=True)
        ],
    )
    seal_folder(finished, made_from=trunk_folders, final=folder)
    publish_folder(finished, folder)
    return workspace.began


def retokenised(tokenizer, tokens: Tokens) -> Tokens:
    """Tokens by way of text, special tokens included, as a pipeline that stores text has them."""
    text = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return tokenizer.encode(text, add_special_tokens=False)


def _piece(work: Work) -> str:
    return f"{work.problem_id}.json"


def rollouts_by_problem(trunk_folder: Path | str) -> list[list[dict]]:
    """Trunk rows of a folder, grouped by problem, in stored order."""
    rows = read_jsonl(Path(trunk_folder) / "trunks.jsonl")
    return [list(group) for _, group in groupby(rows, key=lambda row: row["problem_id"])]
