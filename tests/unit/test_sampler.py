"""The logits processor in vLLM's batch: requests come, go and change places. No engine."""

import random

import pytest
import torch

from replay import sampling

SETTINGS = ((0.3, 0.5), (0.7, 0.95), (1.5, 1.0))  # temperature, top_p


@pytest.fixture(scope="module")
def batch():
    """A class whose rows are changed as vLLM's `InputBatch` changes its own."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdateBuilder, MoveDirectionality

    from replay.sampler import SAMPLE, SeededSampler

    class Batch:
        def __init__(self):
            self.sampler = SeededSampler(None, torch.device("cpu"), False)
            self.updates = BatchUpdateBuilder()
            self.rows = []  # (settings or None for a greedy request, tokens so far)

        def step(self, gone, come, swap):
            rows = list(self.rows)
            for row in gone:
                self.updates.removed_append(row)
                rows[row] = None
            for request in come:
                self._add(rows, request)
            self._close_gaps(rows)
            if swap and len(rows) > 1:
                rows[0], rows[-1] = rows[-1], rows[0]
                self.updates.moved.append((0, len(rows) - 1, MoveDirectionality.SWAP))
            self.rows = rows
            self.sampler.update_state(self.updates.get_and_reset(len(rows)))

        def _add(self, rows, request):
            settings, generated = request
            row = self.updates.pop_removed()
            if row is None:
                row = len(rows)
                rows.append(None)
            rows[row] = request
            parameters = SamplingParams(extra_args={SAMPLE: settings} if settings else None)
            self.updates.added.append((row, parameters, [1], generated))

        def _close_gaps(self, rows):
            while self.updates.removed:
                while rows and rows[-1] is None:
                    rows.pop()
                gap = self.updates.peek_removed()
                if gap >= len(rows):
                    break
                self.updates.pop_removed()
                rows[gap] = rows.pop()
                move = (len(rows), gap, MoveDirectionality.UNIDIRECTIONAL)
                self.updates.moved.append(move)

    return Batch


def alone(logits, settings, generated):
    """The logits of one request that shares its batch with none."""
    if settings is None:
        return logits
    temperature, top_p, seed = settings
    named = logits[None].clone()
    sampling.name_winners(
        named,
        torch.tensor([0]),
        torch.tensor([temperature], dtype=torch.float64),
        torch.tensor([top_p], dtype=torch.float64),
        sampling.noise_streams(torch.tensor([seed]), torch.tensor([len(generated)])),
    )
    return named[0]


def arriving(chance):
    if chance.random() < 0.4:
        return None, []
    tokens = [7] * chance.choice([0, 3])  # a request that was preempted comes with its own
    return [*chance.choice(SETTINGS), chance.getrandbits(62)], tokens


@pytest.mark.parametrize("seed", range(10))
def test_each_request_is_drawn_as_if_it_were_alone(batch, seed):
    chance, running = random.Random(seed), batch()
    generator = torch.Generator().manual_seed(seed)
    drawn = 0
    for _ in range(40):
        gone = [row for row in range(len(running.rows)) if chance.random() < 0.15]
        come = [arriving(chance) for _ in range(chance.choice([0, 0, 1, 2, 5]))]
        running.step(gone, come, swap=chance.random() < 0.4)
        logits = torch.randn(len(running.rows), 40, generator=generator) * 2
        named = running.sampler.apply(logits.clone())
        for row, (settings, generated) in enumerate(running.rows):
            assert named[row].equal(alone(logits[row], settings, generated))
            generated.append(-1)  # as asynchronous scheduling has it, before the token is known
            drawn += settings is not None
    assert drawn > 100
