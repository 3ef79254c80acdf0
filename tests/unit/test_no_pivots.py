"""A shard in which no pivot is found is an empty, valid result; no engine starts for it."""

import io
import json

import torch
from safetensors.torch import save_file

from replay import engine, grades, passes, records
from replay.analysis import analyze
from replay.controls import controls
from replay.kv_state import describe
from replay.protocol import CATALOGUE
from replay.storage import read_json, seal_folder, write_jsonl
from replay.trunks import kv_file, resumable

SURE = [[5, -0.1], [6, -9.0]]
SETTINGS = {
    "engine": {"max_model_len": 64},
    "pivots": {"margin_lt": 1.0, "boundary_slack": 2, "max_per_rollout": 5, "ranking": "text"},
    "continuations": {"k": 2, "max_tokens": 8, "probe_tokens": 8},
    "passes": list(CATALOGUE),
    "pass_order": "random",
}


def test_from_passes_to_analysis(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(engine.Engine, "__init__", lambda *_: pytest_fail())
    trunks = tmp_path / "trunks"
    rows = [
        {
            "problem_id": 0, "rollout": rollout, "block_size": 16,
            "prompt_token_ids": [1] * 16, "token_ids": [5] * 20, "topk": [SURE] * 20,
            "text": "Answer: 4", "finish_reason": "stop", "block_owners": [0, rollout],
        }
        for rollout in range(2)
    ]  # fmt: skip
    write_jsonl(trunks / "trunks.jsonl", rows)
    sequences = [resumable(row["prompt_token_ids"] + row["token_ids"], 16) for row in rows]
    kv_file(trunks, 0).parent.mkdir()
    save_file({"layer.0": torch.zeros(1)}, kv_file(trunks, 0), metadata=describe(sequences, 16))
    seal_folder(trunks)
    dataset = tmp_path / "dataset.jsonl"
    write_jsonl(dataset, [{"question": "2 + 2?", "answer": 4}])

    passed, graded = tmp_path / "passes" / "0-of-1", tmp_path / "grades"
    passes.run(["c"], SETTINGS, "code", [str(trunks)], checkpoint, passed, io.StringIO())
    grading = {"grader": "strict", "scope": None}
    names = SETTINGS["passes"]
    grades.run(grading, names, [str(trunks)], [str(passed)], dataset, checkpoint, graded)
    settings = {"k": 2, "passes": names}
    records.run(settings, [str(passed)], str(graded), tmp_path / "records.json")

    result = read_json(tmp_path / "records.json")
    assert result["pivots"] == []
    assert result["per_problem"][0]["rollout_accuracy"] == 1.0
    facts = {"shard": "0-of-1", "engines": [], "requests": 0}
    assert records.shard_facts([str(passed)]) == [facts]
    analysis = analyze(result["pivots"], 2)
    assert analysis["n_records"] == 0 and analysis["common_set"]["refeed"]["flip_rate"] is None
    json.dumps(analysis | controls(result), allow_nan=False)


def pytest_fail():
    raise AssertionError("an engine was started")
