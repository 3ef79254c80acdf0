"""Which GPUs an engine takes: as many as its configuration asks for, none that another holds."""

import os
import tempfile
import time
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path

from replay.storage import lock_folder

POLL_SECONDS = 1.0


class DeviceError(RuntimeError):
    """The GPUs that a configuration asks for are not there."""


def gpus(engine: dict) -> int:
    """GPUs that an engine with these settings takes: one a tensor-parallel rank, none on a CPU."""
    return engine["tensor_parallel"] if engine["device"] == "cuda" else 0


def check_granted(engine: dict, granted: int) -> None:
    """Refuse (DeviceError) a job whose `gpu` resource is not what its configuration asks for."""
    if granted != gpus(engine):
        raise DeviceError(
            f"this job was given gpu={granted}, but engine.device {engine['device']} with "
            f"engine.tensor_parallel {engine['tensor_parallel']} takes {gpus(engine)}; take the "
            "override of the resource away (--set-resources, profile) or change the configuration"
        )


def visible() -> list[str]:
    """Identifiers of the GPUs that this process may use, without starting CUDA.

    As CUDA reads its variable: what follows an entry that names no device is not visible.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        return list(dict.fromkeys(takewhile(lambda name: name not in ("", "-1"), names)))
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def shortage(count: int) -> str | None:
    """What to say at the start of a run whose jobs take `count` GPUs, where fewer are visible."""
    if not count or (found := len(visible())) >= count:
        return None
    return (
        f"jobs of this run take {count} GPUs at once, visible here are {found}: those that start an"
        " engine fail unless they run elsewhere"
    )


def claim(count: int) -> ExitStack:
    """Take `count` of the visible GPUs for this process and what it starts.

    The lowest that no other engine holds; waits while there are too few. Sets
    `CUDA_VISIBLE_DEVICES`. The claim ends when the returned stack is closed, or with the process.

    Raises DeviceError when fewer than `count` are visible.
    """
    names = visible()
    if count > len(names):
        raise DeviceError(
            f"the configuration asks for {count} GPUs (engine.tensor_parallel), visible are "
            f"{len(names)} (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')})"
            "; run it where there are so many, or change engine.tensor_parallel or engine.device"
        )
    root = Path(tempfile.gettempdir()) / f"replay-gpus-{os.getuid()}"
    told = False
    while True:
        with ExitStack() as held:
            taken = []
            for name in names:
                try:
                    held.enter_context(lock_folder(root / name))
                    taken.append(name)
                except BlockingIOError:
                    continue
                if len(taken) == count:
                    held.callback(_set_visible, os.environ.get("CUDA_VISIBLE_DEVICES"))
                    _set_visible(",".join(taken))
                    return held.pop_all()
        if not told:
            print(f"waiting for {count} of the GPUs {', '.join(names)} to be free", flush=True)
            told = True
        time.sleep(POLL_SECONDS)


def _set_visible(names: str | None) -> None:
    if names is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = names
