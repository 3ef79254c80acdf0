"""Prompts: the model's own chat template around question and instruction."""

from pathlib import Path

from replay.datasets import Problem


class CheckpointError(ValueError):
    """A checkpoint that cannot be used as it is configured."""


def load_tokenizer(model: Path | str):
    """The checkpoint's tokenizer; CheckpointError when it has no chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    if not tokenizer.chat_template:
        raise CheckpointError(
            "the tokenizer has no chat template; use an instruction-tuned checkpoint"
        )
    return tokenizer


def prompt_token_ids(tokenizer, problem: Problem, prompt: dict) -> list[int]:
    """Token ids of one user turn: question + `prompt.instruction`, after `prompt.system`."""
    messages = [{"role": "user", "content": problem.question + prompt["instruction"]}]
    if prompt["system"]:
        messages.insert(0, {"role": "system", "content": prompt["system"]})
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    )
