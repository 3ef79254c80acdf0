"""What the pivot browser is given: each text once, divergences marked, within its budget."""

import json

import pytest

from replay import browser
from replay.browser import Texts, build, continuation, dumped, segments, stored_texts
from replay.grading import GRADERS
from replay.protocol import PASSES
from replay.storage import read_json, write_json, write_jsonl

# Two tokens that are half a character each, as in byte-level vocabularies.
VOCABULARY = [b" a", b" b", b" c", b" \xc3", b"\xa9", b" d"]


def decode(ids):
    return b"".join(VOCABULARY[i] for i in ids).decode(errors="replace")


def completion(problem, position, arm, k, ids):
    return {
        "problem_id": problem, "rollout": 0, "abs_pos": position, "arm": arm, "k": k,
        "token_ids": ids, "finish_reason": "stop",
    }  # fmt: skip


def grade(row, outcome):
    answers = {"strict": 1.0 if outcome == "right" else None}
    return row | {"outcome": outcome, "answers": answers}


def record(problem, position, estimates):
    return {
        "problem_id": problem, "rollout": 0, "abs_pos": position, "gen_index": position - 10,
        "margin": 0.25, "rollout_correct": 1, "sampled_token": 0, "alternative_token": 1,
        "cache_ok_exact1": True, "cached_tokens_exact1": [16, 16],
    } | dict(zip((f"A_{p}" for p in PASSES), estimates, strict=True))  # fmt: skip


RECORDS = {
    "config": {"k": 1, "sections": {"grading": {"grader": "strict"}}},
    "pivots": [
        record(0, 11, (0, 0, 0)),
        record(0, 12, (1, 1, 1)),
        record(1, 11, (1, 1, 0)),
        record(2, 11, (1, 1, -1)),
    ],
}
KEYS = [(r["problem_id"], r["abs_pos"]) for r in RECORDS["pivots"]]


def rows(name):
    """Continuations of one pass: re-feed leaves exact 1 in the alternative arm."""
    ids = {"actual": [0, 1, 2], "alt": [0, 5, 5] if name == "refeed" else [0, 1]}
    return [
        completion(*key, arm, k, ids[arm]) for key in KEYS for arm in ids for k in (0, "greedy")
    ]


def graded(name):
    return [grade(row, "right") for row in rows(name) if row["k"] == 0]


def trunk(problem):
    return {"problem_id": problem, "rollout": 0, "token_ids": [0, 1, 2, 5]}


def texts(trunks=(0, 1, 2)):
    return Texts(
        RECORDS,
        {problem: {"question": f"Question {problem}?", "answer": 1.0} for problem in range(3)},
        [trunk(problem) for problem in trunks],
        {name: rows(name) for name in PASSES},
        {name: graded(name) for name in PASSES},
        decode,
    )


def chosen(selection):
    return [(p["problem_id"], p["abs_pos"]) for p in selection["pivots"]]


def test_segments_join_to_the_text_and_keep_characters_whole():
    ids = [0, 3, 4, 5]
    assert segments(ids, [1, 2, 3], decode) == [" a", " ", "é", " d"]
    assert segments(ids, [], decode) == [" a é d"]
    assert segments(ids, [0, 4], decode) == ["", " a é d", ""]


@pytest.mark.parametrize(
    ("reference", "ids", "expected"),
    [
        ([0, 1], [0, 1], {"shared": 4, "rest": "", "token": None}),
        ([0, 1], [0, 5], {"shared": 2, "rest": " d", "token": 1}),
        ([0, 1], [0], {"shared": 2, "rest": "", "token": 1}),
        ([0], [0, 1], {"shared": 2, "rest": " b", "token": 1}),
        ([], [1], {"shared": 0, "rest": " b", "token": 0}),
        # The token differs in the middle of a character: the whole character is the rest's.
        ([3, 4], [3, 5], {"shared": 1, "rest": "\ufffd d", "token": 1}),
    ],
)
def test_a_continuation_is_what_it_shares_and_the_rest(reference, ids, expected):
    result = continuation({"token_ids": reference}, {"token_ids": ids}, decode)
    assert result == expected
    assert decode(reference)[: result["shared"]] + result["rest"] == decode(ids)


def test_arms_hold_every_pass_and_say_where_it_departs():
    entry = build(RECORDS, texts(), 10**6)["pivots"][0]
    actual, alternative = entry["arms"]
    assert (actual["token"], alternative["token"]) == (" a", " b")
    sampled, probe = actual["continuations"]
    assert (sampled["k"], sampled["text"], probe["k"]) == (0, " a b c", "greedy")
    first, *others = sampled["passes"]
    assert (first["outcome"], first["answer"], first["token"]) == ("right", 1.0, None)
    assert others == [None, None]
    assert "outcome" not in probe["passes"][0]
    refeed = alternative["continuations"][0]["passes"][2]
    assert refeed == {
        "shared": 2, "rest": " d d", "token": 1, "finish": "stop", "outcome": "right", "answer": 1.0
    }  # fmt: skip


def test_transcripts_mark_every_pivot_of_the_rollout():
    selection = build(RECORDS, texts(trunks=[0, 2]), 10**6)
    assert selection["rollouts"]["0/0"] == {
        "right": True, "segments": [" a", " b", "", " c", " d"], "at": [11, 12],
    }  # fmt: skip
    assert selection["rollouts"]["1/0"] == {"right": True}  # its transcript is not stored


def test_pivots_carry_signs_and_cache_facts():
    pivots = build(RECORDS, texts(), 10**6)["pivots"]
    assert [p["eligible"] for p in pivots] == [False, True, True, True]
    assert [p["changed"] for p in pivots] == [[], [], ["refeed"], ["refeed"]]
    assert [p["reversed"] for p in pivots] == [[], [], [], ["refeed"]]
    assert pivots[0]["cached"] == [[16, 16], None, None]
    assert pivots[0]["resumed"] == [True, None, None]


def test_the_budget_takes_sign_changes_first():
    full = build(RECORDS, texts(), 10**6)
    assert chosen(full) == KEYS and full["total"] == 4
    order = [(2, 11), (1, 11), (0, 12), (0, 11)]
    for size in range(5):
        budget = next(
            b for b in range(0, 10**5, 100) if len(chosen(build(RECORDS, texts(), b))) == size
        )
        part = build(RECORDS, texts(), budget)
        assert chosen(part) == sorted(order[:size]) and part["total"] == 4
        assert set(part["problems"]) == {str(problem) for problem, _ in chosen(part)}
        entries = {name: part[name] for name in ("problems", "rollouts", "pivots")}
        assert len(dumped(entries)) <= budget + 100  # braces and names


def test_records_alone_give_pivots_without_texts(tmp_path):
    path, output = tmp_path / "records.json", tmp_path / "browser.json"
    write_json(path, {"config": {"k": 1}, "pivots": RECORDS["pivots"]})
    browser.run(str(path), [], [], [], None, None, 10**6, output)
    selection = read_json(output)
    assert chosen(selection) == KEYS and selection["problems"] == {}
    assert all("arms" not in pivot for pivot in selection["pivots"])


def test_run_reads_the_stored_files(checkpoint, tmp_path):
    write_json(tmp_path / "records.json", RECORDS)
    write_jsonl(tmp_path / "data.jsonl", [{"question": "1?", "answer": 1}] * 3)
    write_jsonl(tmp_path / "trunks" / "trunks.jsonl", map(trunk, range(3)))
    for name in PASSES:
        write_jsonl(tmp_path / "passes" / f"{name}.jsonl", rows(name))
        write_jsonl(tmp_path / "grades" / f"{name}.jsonl", graded(name))
    passes, graded_in, trunks = (str(tmp_path / name) for name in ("passes", "grades", "trunks"))
    browser.run(
        str(tmp_path / "records.json"), [passes], graded_in, [trunks],
        str(tmp_path / "data.jsonl"), str(checkpoint), 10**6, tmp_path / "browser.json",
    )  # fmt: skip
    selection = read_json(tmp_path / "browser.json")
    assert chosen(selection) == KEYS
    assert selection["problems"]["0"] == {"question": "1?", "answer": 1.0}
    assert len(selection["rollouts"]["0/0"]["segments"]) == 5


@pytest.mark.parametrize("grader", GRADERS)
def test_answers_of_every_kind_are_shown(grader, tmp_path, monkeypatch):
    examples = {"number": "7", "letter": "B", "yes-no": "yes", "latex": "$x^2$"}
    answer = examples[GRADERS[grader].answers]
    dataset = tmp_path / "problems.jsonl"
    dataset.write_text(json.dumps({"question": "what?", "answer": answer}) + "\n")
    monkeypatch.setattr(browser, "load_tokenizer", lambda model: None)
    records = RECORDS | {"config": {"k": 1, "sections": {"grading": {"grader": grader}}}}
    shown = stored_texts(records, [], [], [], str(dataset), "model").problems[0]
    assert shown["question"] == "what?"
    assert str(shown["answer"]).strip("$").removesuffix(".0") == answer.strip("$")
