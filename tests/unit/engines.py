"""What stands where an engine would."""

from replay.engine import Completion


class FakeEngine:
    """An engine that says what was asked of it; its answers are the same to all."""

    block_size = 16

    def __init__(self, *_):
        self.asked, self.overwritten = [], set()

    def sampled(self, **settings):
        return settings

    greedy = sampled

    def reset(self):
        self.asked.append("reset")

    def restore_kv(self, path):
        self.asked.append("restore")
        blocks = {(r,) * end: 10 * r + end // 16 for r in (0, 1) for end in (16, 32)}
        return blocks, dict.fromkeys(blocks, "as saved")

    def prefill_kv(self, sequences):
        self.asked.append(("prefill", sequences))
        return {}

    def contents(self, blocks):
        return {p: "other" if b in self.overwritten else "as saved" for p, b in blocks.items()}

    def generate(self, prompts, parameters, arrivals=None):
        self.asked.append(("generate", len(prompts), arrivals and sum(arrivals)))
        self.prompts = prompts
        return [
            Completion(
                [7, 8],
                "stop",
                [{7: -0.5}, {8: 0.0}] if "logprobs" in asked else None,
                16,
                0,
                [10 * prompt[0] + 1, 10 * prompt[0] + 2, 99],
            )
            for prompt, asked in zip(prompts, parameters, strict=True)
        ]

    def facts(self):
        return {"vllm": "none"}
