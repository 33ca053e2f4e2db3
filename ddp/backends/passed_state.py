"""The file with which one rank sends its state to others in a round: it writes the file, the others read it.

Nobody reads the file of an earlier round, and files are in memory, so the writer removes older ones. Does not know the
contents."""

from __future__ import annotations

from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch

from ddp.core.errors import OutOfResources
from ddp.process.resource_errors import free, of_file

UNSENT = "unsent"
"""The key of the reason in a file without a state."""


def place(scratch: Path, round: int) -> Path:
    """Return the path of the file of a round."""
    return scratch / f"shared-{round}.pt"


def write(scratch: Path, round: int, state: dict[str, Any]) -> None:
    """Write the state. If there is no space, write nothing; if something cannot be pickled, write why. `read` then fails
    on the ranks that need it, not on this one."""
    import cloudpickle  # pickles classes and functions of the user's script by value

    path = place(scratch, round)
    for old in scratch.glob("shared-*.pt"):
        if int(old.stem.rpartition("-")[2]) < round:
            old.unlink(missing_ok=True)
    try:
        with path.open("wb") as file:  # given a path, torch would hide the system's error
            torch.save(state, file, pickle_module=cloudpickle)
    except (PicklingError, TypeError, AttributeError, ValueError) as error:
        torch.save({UNSENT: f"the state of the others cannot be sent to a rank that joins: {error}"}, path)
    except (OSError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        if of_file(error, path).errno is None:
            raise


def read(scratch: Path, round: int, device: torch.device, plain: bool = True) -> Any:
    """Return the state. `plain=False` unpickles any class, as a rank of this run wrote it. Raises OutOfResources, and
    RuntimeError if the writer could not pickle it."""
    path = place(scratch, round)
    try:
        state = torch.load(path, map_location=device, weights_only=plain)
    except FileNotFoundError as error:
        raise OutOfResources(f"the state of the others could not be written to {path}: {free(path)}") from error
    if UNSENT in state:
        raise RuntimeError(state[UNSENT])
    return state
