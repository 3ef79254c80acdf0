"""What each pass has in the cache, and in what order passes and requests run. No engine."""

from pathlib import Path

import pytest
import yaml
from engines import FakeEngine

from replay.config import load_schema
from replay.passes import Request, Work, arrivals, pass_order, plan, retokenised, run_problem
from replay.prompts import load_tokenizer
from replay.protocol import CATALOGUE, PASSES, others, passes_of, warm

SAMPLING = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 4, "probe_tokens": 2}


def work(rollouts=(0, 1), positions=(17, 33)):
    requests = [
        Request(rollout, position, "actual", k, 1, [rollout] * position, [9] * position)
        for rollout in rollouts
        for position in positions
        for k in (0, "greedy")
    ]
    return Work(5, "c", Path("kv"), [], requests)


def run(order):
    engine, done = FakeEngine(), []
    result = run_problem(engine, work(), SAMPLING, list(order), done.append)
    assert done == [8] * len(order) and result["order"] == list(order)
    assert all(len(rows) == 8 for rows in result["passes"].values())
    return engine, result["passes"]


def test_the_published_passes_share_one_restore_and_refeed_starts_cold():
    engine, rows = run(PASSES)
    batch = ("generate", 8, None)
    assert engine.asked == ["restore", batch, batch, "reset", batch]
    assert all(row["resumed"] for name in ("exact1", "exact2") for row in rows[name])
    assert not any(row["resumed"] for row in rows["refeed"])


def test_every_other_change_of_state_starts_anew():
    batch = ("generate", 8, None)
    engine, _ = run(["refeed", "exact1", "prefill_warm", "refeed2", "exact2"])
    prefixes = ("prefill", [[0] * 32, [1] * 32])  # up to the last pivot's block of each rollout
    assert engine.asked == [
        "reset", batch, "restore", batch, prefixes, batch, "reset", batch, "restore", batch,
    ]  # fmt: skip
    engine, _ = run(["refeed", "refeed2"])
    assert engine.asked == ["reset", batch, "reset", batch]


def test_serial_passes_take_one_request_at_a_time():
    one = ("generate", 1, None)
    assert run(["serial_exact"])[0].asked == ["restore", *[one] * 8]
    # The first reset is that of the pass, then every request has its own.
    assert run(["serial_refeed"])[0].asked == ["reset", *["reset", one] * 8]


def test_a_staggered_pass_hands_its_arrivals_to_the_engine():
    engine, _ = run(["staggered", "staggered2"])
    assert engine.asked == ["restore", ("generate", 8, 8), ("generate", 8, 8)]


def test_a_text_pass_sends_what_became_of_the_text():
    engine, _ = run(["text_refeed"])
    assert engine.asked[0] == "reset" and {token for p in engine.prompts for token in p} == {9}


def test_arrivals_are_seeded_and_complete():
    assert arrivals(3, "staggered", 30) == arrivals(3, "staggered", 30)
    assert arrivals(3, "staggered", 30) != arrivals(3, "staggered2", 30)
    assert arrivals(3, "staggered", 30) != arrivals(4, "staggered", 30)
    many = arrivals(3, "staggered", 4000)
    assert sum(many) == 4000 and 900 < len(many) < 1100  # four a step


def test_orders_are_seeded_permutations():
    names = list(CATALOGUE)
    assert pass_order(names, "listed", 3) == names
    orders = [pass_order(names, "random", problem) for problem in range(20)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert orders == [pass_order(names, "random", problem) for problem in range(20)]
    assert len({tuple(order) for order in orders}) > 10


def test_text_prompts_are_planned_where_a_pass_takes_them(monkeypatch):
    monkeypatch.setattr("replay.passes._check_state", lambda rows, path: None)
    row = {
        "problem_id": 7, "rollout": 0, "block_size": 16, "prompt_token_ids": list(range(15)),
        "token_ids": [100, 100, 100], "topk": [[[100, -0.5], [101, -0.5]]] * 3,
        "block_owners": [0],
    }  # fmt: skip
    settings = {
        "pivots": {"margin_lt": 1.0, "boundary_slack": 0, "max_per_rollout": 5, "ranking": "text"},
        "continuations": {"k": 1},
    }

    def merged(tokens):
        return tokens if tokens[-1] == 100 else [*tokens[:-2], 555]

    planned = plan([row], "c", "kv", settings, set(), merged)
    assert planned.pivots[0]["text_changed"] == {"actual": False, "alt": True}
    assert planned.requests[0].text_prompt == planned.requests[0].prompt
    assert planned.requests[-1].text_prompt == [*range(15), 555]
    assert "text_prompt" not in planned.requests[0].identity()
    without = plan([row], "c", "kv", settings, set())
    assert "text_changed" not in without.pivots[0] and without.requests[0].text_prompt is None


def test_pivots_carry_what_the_trunk_recorded_at_the_next_position(monkeypatch):
    monkeypatch.setattr("replay.passes._check_state", lambda rows, path: None)
    close = [[100, -0.5], [101, -0.5]]
    row = {
        "problem_id": 7, "rollout": 0, "block_size": 16, "prompt_token_ids": list(range(15)),
        "token_ids": [100, 100], "topk": [[[100, -0.1], [101, -3.0]], close], "block_owners": [0],
    }  # fmt: skip
    settings = {
        "pivots": {"margin_lt": 4.0, "boundary_slack": 15, "max_per_rollout": 5, "ranking": "text"},
        "continuations": {"k": 1},
    }
    planned = plan([row], "c", "kv", settings, set())
    assert [pivot["next_topk"] for pivot in planned.pivots] == [close, None]


def test_tokens_by_way_of_text(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    template = tokenizer.encode("<|im_start|>user\nWhat is 7 plus 2?<|im_end|>\n")
    assert retokenised(tokenizer, template) == template
    pieces = [token for letter in "apples" for token in tokenizer.encode(letter)]
    assert retokenised(tokenizer, pieces) == tokenizer.encode("apples") != pieces


def test_the_schema_names_the_passes_of_the_catalogue():
    entry = load_schema()["$defs"]["passes"]
    assert entry["items"]["enum"] == list(CATALOGUE) and entry["default"] == list(PASSES)


def test_the_names_of_parts():
    assert warm(CATALOGUE) == [n for n, kind in CATALOGUE.items() if kind.state != "cold"]
    assert others(PASSES) == ["exact2", "refeed"]
    assert passes_of({"config": {}}) == list(PASSES)
    assert passes_of({"config": {"passes": ["a"]}}) == ["a"]


@pytest.mark.parametrize("name", ["controls", "gpu-controls"])
def test_every_control_is_in_the_configurations_of_controls(root, name):
    content = yaml.safe_load((root / "config" / f"{name}.yaml").read_text(encoding="utf-8"))
    listed = {p for entry in content["configurations"].values() for p in entry["passes"]}
    assert listed == set(CATALOGUE)
    assert content["pass_order"] == "random"


@pytest.mark.parametrize("moment", ["restore_kv", "generate"])
def test_a_block_that_changed_before_or_during_a_pass_does_not_count_as_resumed(moment):
    """Its ids still are those that were restored; other rollouts' blocks are as they were."""
    engine = FakeEngine()
    inner = getattr(engine, moment)

    def overwriting(*arguments):
        engine.overwritten = {11}
        return inner(*arguments)

    setattr(engine, moment, overwriting)
    rows = run_problem(engine, work(), SAMPLING, ["exact1", "exact2"], lambda n: None)
    for name in ("exact1", "exact2"):
        found = rows["passes"][name]
        assert {row["rollout"]: row["resumed"] for row in found} == {0: True, 1: False}
