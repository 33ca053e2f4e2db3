"""Writes the model that a rank ends with. All ranks end with the same, so one whose copy does not fit is no loss."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddp.process.resource_errors import of_file
from ddp.replica.memory.flat import savable


def place(scratch: Path, rank: int) -> Path:
    """Return the path of the file of a rank."""
    return scratch / f"state-{rank}.pt"


def write(model: nn.Module, path: Path) -> None:
    """Write the model's state; if there is no room for it, leave no file. Raises what torch raises for other reasons."""
    state = savable(model)
    if _written(state, path):
        return
    # Copies written at the same time may have taken each other's room: try once more, one rank after the other.
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        _written(state, path)
    finally:
        os.close(folder)


def _written(state: dict[str, Any], path: Path) -> bool:
    import cloudpickle  # pickles classes of the user's script by value

    try:
        with path.open("wb") as file:  # given a path, torch would hide the system's error
            torch.save(state, file, pickle_module=cloudpickle)
    except (OSError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        if of_file(error, path).errno is None:
            raise
        return False
    return True
