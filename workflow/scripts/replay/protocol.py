"""Names of the measurement's parts: passes, arms, the probe, and what is compared with what."""

PASSES = ("exact1", "exact2", "refeed")
REFERENCE = "exact1"
COMPARED = ("exact2", "refeed")  # the replica floor, and the treatment
EXACT = ("exact1", "exact2")  # passes that must resume restored state
ARMS = ("actual", "alt")
OUTCOMES = ("right", "wrong", "unparsed", "truncated")  # of a graded text
INVARIANT = "invariant"  # verdict of an engine whose self-check found no difference
PROBE = "greedy"  # stands where a continuation has its number k


def pivot_key(row: dict) -> tuple[int, int, int]:
    """A pivot's identity, and the selection key of critical-token sets."""
    return row["problem_id"], row["rollout"], row["abs_pos"]
