"""Trunk rollouts of a problem, and the decode-time KV state saved with them (paper 3.1)."""

import math
import zlib
from functools import cached_property
from pathlib import Path
from typing import IO

from replay.datasets import Problem, answer_kind, load_problems
from replay.engine import Completion, Engine, EngineError, located, software_versions
from replay.job import progress
from replay.kv_state import link_state, unique_blocks
from replay.models import context_limit
from replay.prompts import CheckpointError, load_tokenizer, prompt_token_ids
from replay.storage import (
    Workspace,
    check_folder,
    distinct,
    publish_folder,
    read_json,
    seal_folder,
    sha256_file,
    write_json,
    write_jsonl,
)


def stable_seed(*parts: object) -> int:
    """31-bit seed from a hash of its parts, as published: crc32 of `a|b|c`."""
    return zlib.crc32("|".join(map(str, parts)).encode()) & 0x7FFFFFFF


def resumable(tokens: list[int], block_size: int) -> list[int]:
    """The tokens whose blocks are full and computed: the last sampled token never was."""
    return tokens[: (len(tokens) - 1) // block_size * block_size]


def block_owners(blocks: list[list[int]], rows: list[list[int]], resident: list[int]) -> list:
    """For each rollout, whose block it resumes, per full block.

    Rollouts that share their first tokens have blocks of equal hash, of which the engine hits the
    oldest: `blocks` are the physical blocks that each rollout held, `resident` the block that is
    hit for each row.
    """
    holder: dict[int, int] = {}
    for rollout, held in enumerate(blocks):
        for block in held:
            holder.setdefault(block, rollout)
    return [[holder[resident[row]] for row in of_rollout] for of_rollout in rows]


class TrunkGenerator:
    """Generates trunks problem by problem, on an engine started when first needed.

    A problem's trunks and KV state are a finished piece of `workspace`: never generated twice.
    """

    def __init__(self, workspace: Workspace, model: Path | str, settings: dict):
        self.workspace = workspace
        self.model = model
        self.settings = settings
        self.engine: Engine | None = None

    @cached_property
    def tokenizer(self):
        return load_tokenizer(self.model)

    def piece(self, index: int) -> Path:
        return self.workspace.path(f"{index}.json")

    def kv_piece(self, index: int) -> Path:
        return self.workspace.path(f"{index}.safetensors")

    def rollouts(self, problem: Problem) -> list[dict]:
        """The problem's trunk rows, one a rollout, from the workspace or from the engine."""
        piece = self.piece(problem.index).name
        if not self.workspace.has(piece):
            rows = self._generate(problem, self.kv_piece(problem.index))
            self.workspace.save(piece, {"rows": rows, "engine": self.engine.facts()})
        return self.workspace.load(piece)["rows"]

    def prompt(self, problem: Problem) -> list[int]:
        return prompt_token_ids(self.tokenizer, problem, self.settings["prompt"])

    def check_context(self, problems: list[Problem]) -> None:
        """Refuse, before an engine starts, what would not fit into the model's context.

        Raises CheckpointError naming the config key.
        """
        limit, allowed = self.settings["engine"]["max_model_len"], context_limit(self.model)
        if allowed is not None and limit > allowed:
            raise CheckpointError(
                f"engine.max_model_len is {limit}, the model's context is {allowed} tokens"
            )
        lengths = ((len(self.prompt(problem)), problem.index) for problem in problems)
        longest, index = max(lengths, default=(0, None))
        sampled = self.settings["trunks"]["max_tokens"]
        if longest + sampled > limit:
            raise CheckpointError(
                f"engine.max_model_len is {limit}, but the longest prompt ({longest} tokens, "
                f"problem {index}) and trunks.max_tokens ({sampled}) take {longest + sampled}"
            )

    def _generate(self, problem: Problem, kv_path: Path) -> list[dict]:
        sampling = self.settings["trunks"]
        prompt = self.prompt(problem)
        if self.engine is None:
            self.engine = Engine(self.model, self.settings["engine"])
        engine = self.engine
        first_seed = stable_seed(problem.index, "trunk")
        seeds = [first_seed + i for i in range(sampling["rollouts"])]
        parameters = [
            engine.sampled(
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=sampling["max_tokens"],
                seed=seed,
                logprobs=sampling["logprobs"],
            )
            for seed in seeds
        ]
        engine.reset()
        with located(f"problem {problem.index}, trunks"):
            completions = engine.generate([prompt] * len(seeds), parameters)
        if any(completion.preemptions for completion in completions):
            longest = len(prompt) + sampling["max_tokens"]
            most = len(seeds) * math.ceil(longest / engine.block_size) + 1  # vLLM keeps one
            raise EngineError(
                f"problem {problem.index}: a trunk rollout was preempted, so its state was "
                "recomputed, not decoded; raise engine.kv_cache_gib, with "
                f"{engine.gib_for(most)} none can be"
            )
        sequences = [resumable(prompt + c.token_ids, engine.block_size) for c in completions]
        resident = engine.save_kv(sequences, kv_path)
        _, rows = unique_blocks(sequences, engine.block_size)
        owners = block_owners([c.block_ids for c in completions], rows, resident)
        return [
            self._row(problem, rollout, seed, prompt, completion, owner)
            for rollout, (seed, completion, owner) in enumerate(
                zip(seeds, completions, owners, strict=True)
            )
        ]

    def _row(
        self,
        problem: Problem,
        rollout: int,
        seed: int,
        prompt: list[int],
        completion: Completion,
        owners: list[int],
    ) -> dict:
        return {
            "problem_id": problem.index,
            "rollout": rollout,
            "seed": seed,
            "block_size": self.engine.block_size,
            "prompt_token_ids": prompt,
            "token_ids": completion.token_ids,
            "topk": [sorted(p.items(), key=lambda e: -e[1]) for p in completion.logprobs],
            "text": self.tokenizer.decode(completion.token_ids, skip_special_tokens=True),
            "finish_reason": completion.finish_reason,
            "block_owners": owners,
        }


def shard_of(indices: list[int], shard: str) -> list[int]:
    """The part of a cohort that shard `i-of-n` works on."""
    position, count = map(int, shard.split("-of-"))
    return indices[position::count]


def run(
    settings: dict,
    code: str,
    shard: str,
    cohort_file: Path | str,
    scan_folder: Path | str,
    dataset: Path | str,
    model: Path | str,
    folder: Path | str,
    console: IO[str],
) -> str:
    """Generate the trunks of one shard of a cohort; `folder` appears when all are done.

    Problems that the screen generated already are taken over from `scan_folder`. Returns when the
    oldest of the others was begun.
    """
    check_folder(scan_folder)
    cohort = read_json(cohort_file)
    admitted = [entry["index"] for entry in cohort["problems"] if entry["admitted"]]
    problems = load_problems(dataset, answer_kind(settings["dataset"]))
    wanted = [problems[index] for index in shard_of(admitted, shard)]
    determines = [settings, code, shard, cohort, sha256_file(dataset), software_versions()]
    workspace = Workspace(folder, determines)
    generator = TrunkGenerator(workspace, model, settings)
    for problem in wanted:
        piece, state = generator.piece(problem.index), generator.kv_piece(problem.index)
        scanned = Path(scan_folder) / piece.name
        if scanned.exists() and not piece.exists():
            link_state(Path(scan_folder) / state.name, state)
            workspace.save(piece.name, read_json(scanned))
    # With all of them there, as of a screened cohort, there is nothing to load a tokenizer for.
    generator.check_context([p for p in wanted if not generator.piece(p.index).exists()])
    with progress(console, f"trunks {cohort['name']} {shard}", len(wanted), "problem") as bar:
        for problem in wanted:
            generator.rollouts(problem)
            bar.update()
    pieces = [workspace.load(generator.piece(problem.index).name) for problem in wanted]
    finished = workspace.path("finished")
    write_jsonl(finished / "trunks.jsonl", (row for piece in pieces for row in piece["rows"]))
    write_json(finished / "engine.json", distinct(piece["engine"] for piece in pieces))
    for problem in wanted:
        link_state(generator.kv_piece(problem.index), kv_file(finished, problem.index))
    seal_folder(finished)
    publish_folder(finished, folder)
    return workspace.began


def kv_file(trunk_folder: Path | str, index: int) -> Path:
    """Where a trunk folder keeps the KV state of one problem (its first rank's part)."""
    return Path(trunk_folder) / "kv" / f"{index}.safetensors"
