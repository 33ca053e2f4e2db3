"""Finds the checkpoint to resume a run from: the latest that is undamaged and that the run's records tell of.

A file system that lost its last writes may have a checkpoint, and no longer the records of what was trained for it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from bench.results.runfolder import CHECKPOINTS, EVENTS
from ddp.checkpoint.checkpoint import Checkpoint, InvalidCheckpoint, find
from ddp.core.errors import ProtocolError
from ddp.core.messages.events import Saved
from ddp.process.codec import decode
from ddp.regular_files import whole_lines


def find_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to resume the run in `folder` from (None: there is none), and a line for each later one that
    is passed over."""
    return find(folder / CHECKPOINTS, partial(_check_told, folder / EVENTS))


def _check_told(records: Path, checkpoint: Checkpoint) -> None:
    """Raise InvalidCheckpoint if the records lack that a rank saved its part. Whether they can be read is checked when
    they are."""
    index, saved = checkpoint.manifest.index, set[int]()
    with suppress(OSError, ProtocolError):
        for line in whole_lines(records):
            if b'"Saved"' in line and isinstance(record := decode(line), Saved) and record.index == index:
                saved.add(record.rank)
        if not saved >= set(checkpoint.manifest.members):
            raise InvalidCheckpoint(f"{records}: does not tell of checkpoint {index}")
