"""The file by which a rank passes its state on to others in a round: one writes it, they read it, then the round is over.

Nobody reads that of an earlier round, so whoever writes removes it: it lies in memory. Knows nothing of what is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ddp.core.errors import OutOfResources
from ddp.process.resource_errors import free, of_file


def place(scratch: Path, round: int) -> Path:
    """Return the file of a round."""
    return scratch / f"shared-{round}.pt"


def write(scratch: Path, round: int, state: dict[str, Any]) -> None:
    """Write the state. Where there is no room nothing is written: those are lost who need it (`read`), not who has it."""
    path = place(scratch, round)
    for old in scratch.glob("shared-*.pt"):
        if int(old.stem.rpartition("-")[2]) < round:
            old.unlink(missing_ok=True)
    try:
        with path.open("wb") as file:  # of a path, torch keeps to itself why it could not be written
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        if of_file(error, path).errno is None:
            raise


def read(scratch: Path, round: int, device: torch.device, plain: bool = True) -> Any:
    """Return the state; not `plain`: of whatever classes, as a rank of this run has written it. Raises OutOfResources."""
    path = place(scratch, round)
    try:
        return torch.load(path, map_location=device, weights_only=plain)
    except FileNotFoundError as error:
        raise OutOfResources(f"the state of the others could not be written to {path}: {free(path)}") from error
