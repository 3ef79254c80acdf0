"""Plugs `replay.sampling` into vLLM's sampler, through its own custom logits processors.

Imported only where an engine starts. To vLLM such a request is a greedy one whose best token this
processor names, so vLLM makes no generator for it and sorts nothing.
"""

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from replay.sampling import draw

SAMPLE = "replay_sample"  # key of `SamplingParams.extra_args`: [temperature, top_p, seed]


class SeededSampler(LogitsProcessor):
    """Draws the token of every request that carries `SAMPLE`; leaves greedy ones alone."""

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool) -> None:
        self.device = device
        self.requests: dict[int, tuple[list, list[int]]] = {}  # row -> settings, tokens so far
        self.settings: list[torch.Tensor] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update) -> None:
        changed = process_dict_updates(self.requests, batch_update, self._request)
        if changed and self.requests:
            columns = zip(*(settings for settings, _ in self.requests.values()), strict=True)
            temperature, top_p, seeds = columns
            self.settings = [
                torch.tensor(list(self.requests), device=self.device, dtype=torch.int64),
                torch.tensor(temperature, device=self.device, dtype=torch.float64),
                torch.tensor(top_p, device=self.device, dtype=torch.float64),
                torch.tensor(seeds, device=self.device, dtype=torch.int64),
            ]

    @staticmethod
    def _request(parameters, _prompt, generated: list[int]) -> tuple[list, list[int]] | None:
        settings = (parameters.extra_args or {}).get(SAMPLE)
        return settings and (settings, generated)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.requests:
            return logits
        rows, temperature, top_p, seeds = self.settings
        lengths = [len(generated) for _, generated in self.requests.values()]
        positions = torch.tensor(lengths, device=self.device)
        logits[rows, draw(logits[rows], temperature, top_p, seeds, positions)] = torch.inf
        return logits
