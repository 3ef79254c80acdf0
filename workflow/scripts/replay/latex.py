"""Expressions written in LaTeX, read and compared by math-verify (which reads them by sympy).

math-verify gives up after 5 seconds on one expression or one comparison; what it gave up on counts
as unreadable, or as not equal.
"""

import re
from functools import lru_cache

LIMIT = 400  # characters; what is longer is no answer, and may take very long to read
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\boxed\b")


@lru_cache(maxsize=4096)
def read(text: str) -> tuple:
    r"""What math-verify makes of `text`: (sympy expression, ..., its LaTeX), or () if nothing.

    Text without `$`, `\(`, `\[` or `\boxed` is taken as one formula.
    """
    from math_verify import parse  # it takes a second, and most studies do without

    text = text.replace("\u2212", "-").strip()
    if not text or len(text) > LIMIT:
        return ()
    found = parse(text if _DELIMITED.search(text) else f"${text}$")
    return tuple(found) if any(not isinstance(part, str) for part in found) else ()


def equal(gold: str, answer: str) -> bool:
    """Whether two formulas denote the same; `gold` is the side that math-verify trusts."""
    from math_verify import verify

    return verify(list(read(gold)), list(read(answer)))
