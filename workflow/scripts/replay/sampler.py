"""Plugs `replay.sampling` into vLLM's sampler, through its own custom logits processors.

Imported only where an engine starts. To vLLM such a request is a greedy one whose best token this
processor names, so vLLM makes no generator for it and sorts nothing.
"""

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from replay import sampling

SAMPLE = "replay_sample"  # key of `SamplingParams.extra_args`: [temperature, top_p, seed]


class SeededSampler(LogitsProcessor):
    """Draws the token of every request that carries `SAMPLE`; leaves greedy ones alone."""

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool) -> None:
        self.device, self.pinned = device, is_pin_memory
        self.requests: dict[int, tuple[list, list[int]]] = {}  # row -> settings, tokens so far
        self.rows = self.temperature = self.top_p = self.seeds = torch.empty(0)
        self.name_winners = _winners_on(device)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update) -> None:
        changed = process_dict_updates(self.requests, batch_update, self._request)
        if changed and self.requests:
            columns = zip(*(settings for settings, _ in self.requests.values()), strict=True)
            temperature, top_p, seeds = columns
            self.rows = self._on_device(torch.tensor(list(self.requests)))
            self.temperature = self._on_device(torch.tensor(temperature, dtype=torch.float64))
            self.top_p = self._on_device(torch.tensor(top_p, dtype=torch.float64))
            self.seeds = torch.tensor(seeds)

    @staticmethod
    def _request(parameters, _prompt, generated: list[int]) -> tuple[list, list[int]] | None:
        settings = (parameters.extra_args or {}).get(SAMPLE)
        return settings and (settings, generated)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.requests:
            return logits
        positions = torch.tensor([len(generated) for _, generated in self.requests.values()])
        streams = self._on_device(sampling.noise_streams(self.seeds, positions))
        self.name_winners(logits, self.rows, self.temperature, self.top_p, streams)
        return logits

    def _on_device(self, values: torch.Tensor) -> torch.Tensor:
        """A copy that waits for nothing, so that the host goes on while the device computes."""
        values = values.pin_memory() if self.pinned else values
        return values.to(self.device, non_blocking=True)


def _winners_on(device: torch.device):
    if device.type != "cuda":
        return sampling.name_winners
    from replay import sampling_kernel

    return sampling_kernel.name_winners
