"""What every script shares: its log, its progress bar, and one clear line when it fails."""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tqdm import tqdm

from replay.provenance import Sidecar


@contextmanager
def logged(log: str) -> Iterator[IO[str]]:
    """Send everything that this process and its children print to `log`; yield the console.

    Descriptors are redirected, not `sys.stderr`: engine workers write to theirs. An expected
    error (bad input, a refused reset) puts one line on the console and its traceback in the log.
    """
    console = os.fdopen(os.dup(2), "w", buffering=1)
    try:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", buffering=1, encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield console
    except Exception as error:
        print(f"error: {error}\n  (details: {log})", file=console)
        with suppress(OSError):  # the log may lie on the disk that is full
            traceback.print_exc()
            sys.stderr.flush()
        raise SystemExit(1) from error


@contextmanager
def recorded(snakemake) -> Iterator[tuple[IO[str], Sidecar]]:
    """What every script that makes files runs in: `logged`, and a sidecar when it succeeds."""
    with logged(snakemake.log[0]) as console:
        sidecar = Sidecar(
            log=str(snakemake.log[0]),
            rule=snakemake.rule,
            wildcards=dict(snakemake.wildcards.items()),
            params=json.loads(json.dumps(snakemake.params.job)),  # as it is read back
            inputs=[str(path) for path in snakemake.input],
        )
        yield console, sidecar
        sidecar.write([str(path) for path in snakemake.output])


def progress(console: IO[str], what: str, total: int, unit: str) -> tqdm:
    """A bar with the estimated time left; on a file it prints a line every half minute."""
    interval = 0.5 if console.isatty() else 30
    return tqdm(
        total=total,
        desc=what,
        unit=unit,
        file=console,
        mininterval=interval,
        dynamic_ncols=True,
        smoothing=0.1,
    )
