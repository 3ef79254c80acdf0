"""Names of the measurement's parts: passes, arms, the probe, and what is compared with what."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """One run of all requests of a problem: a cache state, an admission and a form of prompt.

    `state` is what the cache holds when the pass starts: `restored` (the decode-time KV state),
    `prefilled` (the same blocks, computed by prefill) or `cold` (nothing). `admission` is `engine`
    (as `engine.process` has it), `serial` (one request at a time) or `staggered` (seeded arrival).
    """

    label: str
    purpose: str
    state: str
    admission: str = "engine"
    prompt: str = "tokens"  # or `text`: decoded and tokenised again

    @property
    def warm(self) -> bool:
        """Whether its requests must resume blocks that are there already."""
        return self.state != "cold"


CATALOGUE = {
    "exact1": Pass("exact 1", "the reference, resumed from the decode-time state", "restored"),
    "exact2": Pass("exact 2", "the same again: the replica floor", "restored"),
    "refeed": Pass("re-feed", "the transcript fed anew, as published pipelines do", "cold"),
    "refeed2": Pass("re-feed 2", "re-feed again after another reset: its own replica", "cold"),
    "prefill_warm": Pass(
        "prefill, warm",
        "the cache hits of an exact pass, on state that prefill computed: recomputed state without"
        " re-feed's batches",
        "prefilled",
    ),
    "serial_exact": Pass(
        "exact, serial", "exact, one request at a time", "restored", admission="serial"
    ),
    "serial_refeed": Pass(
        "re-feed, serial",
        "re-feed, one request at a time and each after a reset",
        "cold",
        admission="serial",
    ),
    "staggered": Pass(
        "exact, staggered",
        "exact with seeded arrivals: other batches, yet reproducible",
        "restored",
        admission="staggered",
    ),
    "staggered2": Pass(
        "exact, staggered 2",
        "exact with other seeded arrivals: against staggered, a floor made by construction",
        "restored",
        admission="staggered",
    ),
    "text_refeed": Pass(
        "re-feed as text",
        "re-feed of the prefix as text that is tokenised again",
        "cold",
        prompt="text",
    ),
}
PASSES = ("exact1", "exact2", "refeed")  # those of the paper, which every list has
REFERENCE = "exact1"
COMPARED = ("exact2", "refeed")  # the replica floor, and the treatment
EXACT = ("exact1", "exact2")  # passes of the paper that must resume restored state
ARMS = ("actual", "alt")
OUTCOMES = ("right", "wrong", "unparsed", "truncated")  # of a graded text
INVARIANT = "invariant"  # verdict of an engine whose self-check found no difference
PROBE = "greedy"  # stands where a continuation has its number k


def warm(passes: Iterable[str]) -> list[str]:
    """Those of the passes that must resume blocks."""
    return [name for name in passes if CATALOGUE[name].warm]


def others(passes: Iterable[str]) -> list[str]:
    """Those of the passes that are compared with the reference."""
    return [name for name in passes if name != REFERENCE]


def passes_of(records: dict) -> list[str]:
    """The passes of a records file; published files do not name theirs."""
    return list(records["config"].get("passes", PASSES))


def pivot_key(row: dict) -> tuple[int, int, int]:
    """A pivot's identity, and the selection key of critical-token sets."""
    return row["problem_id"], row["rollout"], row["abs_pos"]
