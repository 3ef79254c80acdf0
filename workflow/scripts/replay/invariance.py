"""Self-check of an engine: what may change around a request without changing its numbers.

Four questions on real prompts, each answered bit for bit on tokens and logprobs:

- `repetition`: does a run equal the same run again?
- `warm cache`: does it equal one that hits the prefix cache?
- `batch size`: does a request, decoded or prefilled, equal itself when it runs alone?
- `prefill`: does decoding a token give what prefilling all that precedes it gives, each alone?

Batch-invariant numerics promise yes to all, stock numerics on an in-process engine to the first.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from replay.datasets import answer_kind, load_problems
from replay.engine import Completion, Engine, EngineError
from replay.prompts import load_tokenizer, prompt_token_ids
from replay.protocol import INVARIANT
from replay.storage import write_json
from replay.trunks import stable_seed

TOP_LOGPROBS = 5


class Size(NamedTuple):
    """How much is compared: enough to fill the device's batches, done in well under two minutes."""

    prompts: int
    copies: int  # requests a prompt: one greedy, the others sampled
    tokens: int  # a request


# On a CPU with AMX, batches of up to 17 rows are computed as each row is alone.
SIZES = {"cpu": Size(2, 12, 32), "cuda": Size(16, 8, 96)}


@dataclass(frozen=True)
class Sequence:
    """What one request generated, as far as it is compared."""

    name: str
    tokens: list[int]
    logprobs: list[dict[int, float]]

    @classmethod
    def of(cls, name: str, completion: Completion) -> "Sequence":
        return cls(name, completion.token_ids, completion.logprobs)


@dataclass(frozen=True)
class Check:
    """One question by its name, and the answer over all compared positions."""

    name: str
    positions: int  # compared: up to and with the first that differs in each sequence
    equal: int
    sequences: int
    identical: int  # sequences without a difference
    max_delta: float  # nats, largest difference of the first sequence's top logprob
    first: dict | None  # where the first difference is

    @property
    def passed(self) -> bool:
        return self.identical == self.sequences


def compare(name: str, pairs: list[tuple[Sequence, Sequence]]) -> Check:
    """Compare sequences position by position, each up to its first difference.

    Beyond it two sequences continue from other states, so that nothing more is learnt. The first
    difference reported is that of the lowest position.
    """
    positions = equal = identical = 0
    largest = 0.0
    differences = []
    for one, other in pairs:
        same, compared, difference = _common(one, other)
        positions += compared
        equal += same
        identical += difference is None
        if difference is not None:
            differences.append(difference)
            largest = max(largest, difference["delta"] or 0.0)
    first = min(differences, key=lambda d: d["position"], default=None)
    return Check(name, positions, equal, len(pairs), identical, largest, first)


def _common(one: Sequence, other: Sequence) -> tuple[int, int, dict | None]:
    """Equal positions, compared positions, and the first difference of two sequences."""
    length = min(len(one.tokens), len(other.tokens))
    for i in range(length):
        if (one.tokens[i], one.logprobs[i]) != (other.tokens[i], other.logprobs[i]):
            return i, i + 1, _difference(one, other, i)
    if len(one.tokens) != len(other.tokens):
        return length, length + 1, {
            "sequence": one.name, "position": length, "tokens": None, "delta": None,
        }  # fmt: skip
    return length, length, None


def _difference(one: Sequence, other: Sequence, i: int) -> dict:
    best = max(one.logprobs[i], key=one.logprobs[i].get)
    delta = None
    if best in other.logprobs[i]:
        delta = abs(one.logprobs[i][best] - other.logprobs[i][best])
    return {
        "sequence": one.name,
        "position": i,
        "tokens": [one.tokens[i], other.tokens[i]],
        "delta": delta,
    }


def verdict(checks: list[Check]) -> str:
    """`invariant`, or which of the questions were answered no."""
    failed = [check.name for check in checks if not check.passed]
    return f"not {INVARIANT}: {', '.join(failed)}" if failed else INVARIANT


def check_engine(engine: Engine, prompts: list[list[int]], size: Size) -> list[Check]:
    """Ask the four questions of a running engine.

    `prompts` are token ids, `size.prompts` of them at most. Raises EngineError when a request was
    preempted.
    """
    requests = list(_requests(engine, prompts[: size.prompts], size))
    names, ids, parameters = (list(column) for column in zip(*requests, strict=True))

    def run(chosen: list[int], cold: bool = True) -> list[Sequence]:
        if cold:
            engine.reset()
        completions = _generate(engine, [ids[i] for i in chosen], [parameters[i] for i in chosen])
        return [Sequence.of(names[i], c) for i, c in zip(chosen, completions, strict=True)]

    everything = list(range(len(requests)))
    greedy = everything[:: size.copies]
    batch = run(everything)
    warm = run(everything, cold=False)
    again = run(everything)
    decoded = [batch[i] for i in greedy]
    alone = list(chain.from_iterable(run([i]) for i in greedy))
    cuts = [(ids[i], sequence) for i, sequence in zip(greedy, alone, strict=True)]
    prefilled = [_prefilled(engine, [cut], together=False)[0] for cut in cuts]
    together = _prefilled(engine, cuts, together=True)
    return [
        compare("repetition", _pairs(batch, again)),
        compare("warm cache", _pairs(batch, warm)),
        compare("batch size", _pairs(decoded, alone) + _pairs(prefilled, together)),
        compare("prefill", _pairs(alone, prefilled)),
    ]


def _generate(engine: Engine, prompts: list[list[int]], parameters: list) -> list[Completion]:
    """A batch in which every token was computed as asked: decoded or prefilled."""
    completions = engine.generate(prompts, parameters)
    if any(completion.preemptions for completion in completions):
        raise EngineError(
            "a request of the self-check was preempted, so that decoded tokens were recomputed by "
            "prefill; raise engine.kv_cache_gib"
        )
    return completions


def _pairs(one: list[Sequence], other: list[Sequence]) -> list[tuple[Sequence, Sequence]]:
    return list(zip(one, other, strict=True))


def _requests(engine: Engine, prompts: list[list[int]], size: Size) -> Iterator[tuple]:
    """Name, prompt and parameters: for each prompt a greedy request, then sampled ones."""
    for number, prompt in enumerate(prompts):
        for copy in range(size.copies):
            yield f"{number}.{copy}", prompt, engine.sampled(
                temperature=0.7 if copy else 0,
                top_p=0.95,
                max_tokens=size.tokens,
                seed=stable_seed("invariance", number, copy),
                logprobs=TOP_LOGPROBS,
            )  # fmt: skip


def _prefilled(
    engine: Engine, sequences: list[tuple[list[int], Sequence]], together: bool
) -> list[Sequence]:
    """Sequences, given with their prompts, with every position predicted by prefill.

    All positions in one batch, or each alone and cold. The tokens stay those that were decoded.
    """
    cuts = [prompt + s.tokens[:i] for prompt, s in sequences for i in range(len(s.tokens))]
    one = engine.greedy(max_tokens=1, logprobs=TOP_LOGPROBS)
    completions = []
    for batch in [cuts] if together else [[cut] for cut in cuts]:
        engine.reset()
        completions += _generate(engine, batch, [one] * len(batch))
    logprobs = iter([completion.logprobs[0] for completion in completions])
    return [Sequence(s.name, s.tokens, list(islice(logprobs, len(s.tokens)))) for _, s in sequences]


def run(settings: dict, dataset: Path | str, model: Path | str, path: Path | str) -> None:
    """Start the engine, check it on the dataset's first problems and write the result."""
    size = SIZES[settings["engine"]["device"]]
    tokenizer = load_tokenizer(model)
    problems = load_problems(dataset, answer_kind(settings["dataset"]))[: size.prompts]
    prompts = [prompt_token_ids(tokenizer, p, settings["prompt"]) for p in problems]
    engine = Engine(model, settings["engine"])
    checks = check_engine(engine, prompts, size)
    result = {
        "verdict": verdict(checks),
        "checks": [asdict(check) | {"passed": check.passed} for check in checks],
        "size": size._asdict() | {"prompts": len(prompts)},
        "engine": engine.facts(),
    }
    engine.close()
    write_json(path, result)
