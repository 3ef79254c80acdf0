"""What an engine returns is checked before any of it becomes a number. No engine."""

from types import SimpleNamespace

import pytest

from replay.engine import Completion, Engine, EngineError, completion

PROMPT = [1, 2, 3]
PARAMETERS = SimpleNamespace(logprobs=2)


def answer(facts=None, prompt=None, **result):
    """vLLM's output for a request that asked for two logprobs a token."""
    result = {
        "token_ids": [7, 8], "finish_reason": "stop",
        "logprobs": [top({7: -0.5, 9: -1.0}), top({6: -0.1, 9: -2.0, 8: -3.0})],
    } | result  # fmt: skip
    return SimpleNamespace(
        outputs=[SimpleNamespace(**result)],
        prompt_token_ids=prompt or PROMPT,
        num_cached_tokens=16,
        kv_transfer_params={"preemptions": 0, "block_ids": [4], "undefined": False} | (facts or {}),
    )


def top(position):
    return {token: SimpleNamespace(logprob=value) for token, value in position.items()}


def test_an_answer_as_it_should_be():
    assert completion("request 1 of 1", answer(), PROMPT, PARAMETERS) == Completion(
        [7, 8], "stop", [{7: -0.5, 9: -1.0}, {6: -0.1, 9: -2.0, 8: -3.0}], 16, 0, [4]
    )
    sampled = completion("r", answer(logprobs=None), PROMPT, SimpleNamespace(logprobs=None))
    assert sampled.logprobs is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token_ids": []}, "request 2 of 3 returned no tokens"),
        ({"finish_reason": None}, "request 2 of 3 did not finish: finish_reason None"),
        ({"finish_reason": "abort"}, "did not finish: finish_reason 'abort'"),
        ({"finish_reason": "error"}, "did not finish: finish_reason 'error'"),
        ({"prompt": [1, 2, 4]}, "request 2 of 3 came back with the prompt of another request"),
        ({"facts": {"undefined": True}}, r"request 2 of 3: .* NaN logits, .*engine\.dtype"),
        ({"logprobs": None}, "returned 2 tokens and logprobs of 0"),
        ({"logprobs": [top({7: -0.5, 9: -1.0})]}, "returned 2 tokens and logprobs of 1"),
        ({"logprobs": [top({7: -0.5, 9: -1.0}), top({8: -1.0})]}, "token 1: 1 logprobs came back"),
        ({"logprobs": [top({6: -0.5, 9: -1.0})] * 2}, "token 0: 2 logprobs came back, not those"),
        *(
            ({"logprobs": [top({7: value, 8: -1.0})] * 2}, "token 0: a logprob is not finite")
            for value in (float("nan"), float("-inf"))
        ),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_names_the_request(changes, says):
    with pytest.raises(EngineError, match=says):
        completion("request 2 of 3", answer(**changes), PROMPT, PARAMETERS)


def engine_of(generate):
    engine = Engine.__new__(Engine)
    engine.llm = SimpleNamespace(generate=generate)
    return engine


def test_fewer_answers_than_requests_are_an_error():
    engine = engine_of(lambda prompts, parameters, use_tqdm: [answer()])
    with pytest.raises(EngineError, match="2 requests went in, 1 came out"):
        engine.generate([PROMPT] * 2, [PARAMETERS] * 2)


def test_an_engine_that_dies_says_what_it_said_and_that_work_is_kept():
    def dies(*_, **__):
        raise RuntimeError("worker gone")

    with pytest.raises(
        EngineError,
        match=r"a batch of 1 requests \(RuntimeError: worker gone\); finished problems are kept",
    ):
        engine_of(dies).generate([PROMPT], [PARAMETERS])
