"""Seeds, resumable prefixes and whose block a rollout resumes. No engine."""

import io
from pathlib import Path

import pytest

from replay import trunks
from replay.datasets import Problem
from replay.passes import plan
from replay.prompts import CheckpointError
from replay.storage import read_json, read_jsonl, seal_folder, write_json, write_text
from replay.trunks import TrunkGenerator, block_owners, resumable, shard_of, stable_seed


def test_seeds_are_the_published_hash():
    # zlib.crc32(b"12|3|145|alt|0") & 0x7fffffff, computed once by hand.
    assert stable_seed(12, 3, 145, "alt", 0) == 0x61851EDA
    assert stable_seed(0, "trunk") == 0x77AFCDCC
    assert stable_seed(12, 3, 145, "actual", 0) != stable_seed(12, 3, 145, "alt", 0)


@pytest.mark.parametrize(("length", "kept"), [(1, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_the_last_sampled_token_was_never_computed(length, kept):
    assert len(resumable(list(range(length)), 16)) == kept


def test_owners_name_the_rollout_whose_block_is_hit():
    # Two rollouts share their first block (row 0); the first holder's copy, block 7, is resident.
    blocks = [[7, 8], [9, 10]]
    assert block_owners(blocks, [[0, 1], [0, 2]], [7, 8, 10]) == [[0, 0], [0, 1]]


def test_shards_part_the_problems():
    parts = [shard_of(list(range(7)), f"{i}-of-3") for i in range(3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
    assert shard_of([5], "0-of-1") == [5]


def test_requests_come_in_the_published_order(monkeypatch):
    monkeypatch.setattr("replay.passes._check_state", lambda rows, path: None)
    close = [[100 + i, -0.5] for i in range(2)]
    rows = [
        {
            "problem_id": 7,
            "rollout": r,
            "block_size": 16,
            "prompt_token_ids": list(range(15)),
            "token_ids": [100, 100, 100],
            "topk": [close] * 3,
            "block_owners": [0],
        }
        for r in range(2)
    ]
    settings = {
        "pivots": {"margin_lt": 1.0, "boundary_slack": 0, "max_per_rollout": 5, "ranking": "text"},
        "continuations": {"k": 2},
    }
    work = plan(rows, "c", "kv", settings, special_tokens=set())
    order = [(r.rollout, r.abs_pos, r.arm, r.k) for r in work.requests]
    assert order == [
        (rollout, 16, arm, k)
        for rollout in range(2)
        for arm in ("actual", "alt")
        for k in (0, 1, "greedy")
    ]
    first, alternative = work.requests[0], work.requests[3]
    assert first.prompt == [*range(15), 100, 100]
    assert alternative.prompt == [*range(15), 100, 101]
    assert first.seed == stable_seed(7, 0, 16, "actual", 0)
    assert [p["borrowed_blocks"] for p in work.pivots] == [0, 1]


@pytest.fixture
def shard(tmp_path, monkeypatch):
    """Runs the trunks of one admitted problem, of which the scan folder `scan` may hold some."""
    monkeypatch.setattr(trunks, "answer_kind", lambda dataset: None)
    monkeypatch.setattr(trunks, "load_problems", lambda *_: [Problem(0, "1 + 1?", 2.0)])
    scan, dataset, cohort = tmp_path / "scan", tmp_path / "dataset", tmp_path / "cohort.json"
    write_json(scan / "engine.json", [])
    write_text(dataset, "")
    write_json(cohort, {"name": "c", "problems": [{"index": 0, "admitted": True}]})
    model, folder = tmp_path / "model", tmp_path / "trunks"

    def run(limit: int, context: int | None = None) -> Path:
        write_json(model / "config.json", {"max_position_embeddings": context} if context else {})
        seal_folder(scan)
        sampling = {"temperature": 1.0, "top_p": 1.0, "rollouts": 1, "logprobs": 2, "max_tokens": 8}
        settings = {"dataset": None, "engine": {"max_model_len": limit}, "trunks": sampling}
        trunks.run(settings, "", "0-of-1", cohort, scan, dataset, model, folder, io.StringIO())
        return folder

    return run


def test_what_the_screen_generated_is_taken_over_without_an_engine(shard, tmp_path, monkeypatch):
    piece = {"rows": [{"problem_id": 0}], "engine": {"device": "cpu"}}
    write_json(tmp_path / "scan" / "0.json", piece)
    write_text(tmp_path / "scan" / "0.safetensors", "state")
    monkeypatch.setattr(trunks, "load_tokenizer", lambda model: pytest.fail("takes seconds"))
    monkeypatch.setattr(trunks, "link_state", copy_text)
    folder = shard(8)
    assert list(read_jsonl(folder / "trunks.jsonl")) == [{"problem_id": 0}]
    assert read_json(folder / "engine.json") == [{"device": "cpu"}]
    assert (folder / "kv" / "0.safetensors").read_text() == "state"


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (13, r"longest prompt \(6 tokens, problem 0\) and trunks.max_tokens \(8\) take 14"),
        (17, "max_model_len is 17, the model's context is 16 tokens"),
        (14, "starts an engine"),
    ],
)
def test_what_does_not_fit_into_the_context_is_refused_before_an_engine_starts(
    limit, says, shard, monkeypatch
):
    monkeypatch.setattr(TrunkGenerator, "prompt", lambda *_: list(range(6)))
    monkeypatch.setattr(trunks, "Engine", lambda *_: pytest.fail("starts an engine"))
    with pytest.raises((CheckpointError, pytest.fail.Exception), match=says):
        shard(limit, context=16)


def copy_text(source, target):
    write_text(target, source.read_text())


def test_a_prompt_that_does_not_fit_is_named_before_an_engine_starts(monkeypatch):
    monkeypatch.setattr(trunks, "context_limit", lambda model: None)
    monkeypatch.setattr(TrunkGenerator, "prompt", lambda self, problem: [0] * len(problem.question))
    settings = {"engine": {"max_model_len": 100}, "trunks": {"max_tokens": 60}}
    generator = TrunkGenerator(None, "model", settings)
    problems = [Problem(3, "q" * 40, 1.0), Problem(5, "q" * 41, 1.0), Problem(8, "q", 1.0)]
    generator.check_context([problems[0], problems[2]])
    generator.check_context([])
    says = r"max_model_len is 100, but the longest prompt \(41 tokens, problem 5\) .* take 101"
    with pytest.raises(CheckpointError, match=says):
        generator.check_context(problems)
    monkeypatch.setattr(trunks, "context_limit", lambda model: 64)
    with pytest.raises(CheckpointError, match="max_model_len is 100, the model's context is 64"):
        generator.check_context(problems[2:])
