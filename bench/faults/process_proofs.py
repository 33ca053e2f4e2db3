"""Proofs that a fault happened, from the records of real processes and from the ranks' notes. Plays nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.faults.meaning import FaultCell
from bench.faults.outcome import Timed
from ddp import regular_files
from ddp.core.messages.commands import Abort, Drop
from ddp.core.messages.events import Failed, Lost, Progress, RankEvent, Saved

PAUSE_S, SLOW = 1.2, 6.0


@dataclass(frozen=True)
class Note:
    """What a rank wrote down when it was hit. Times are seconds on the clock of the records."""

    at: float
    pid: int
    until: float | None
    """When it continued after it had stood still; None: it did not."""


def note_of(scratch: Path, rank: int) -> Note | None:
    """Return a rank's note; None: it was not hit."""
    path = scratch / f"phase-{rank}"
    if not path.exists():
        return None
    at, pid, *until = regular_files.content(path).split()
    return Note(float(at), int(pid), float(until[0]) if until else None)


def proof(cell: FaultCell, records: Timed, scratch: Path, hit: Sequence[int], status: str, error: str = "") -> str:
    """Return how it is proved that all ranks were hit; empty: it is not. If the first hit ended the run, with `error`,
    the other ranks need no proof."""
    texts = []
    for rank in hit:
        note = note_of(scratch, rank)
        text = "" if note is None else _proved(cell.kind, records, scratch, rank, note) or _said(cell.kind, rank, error)
        if not text and status == "ok":
            return ""
        texts += [text] if text else []
    return f"{texts[0]} ({len(texts)} of {len(hit)} ranks)" if texts else ""


def _said(kind: str, rank: int, error: str) -> str:
    """Return the error with which a run ended that has no coordinator to record it."""
    return error if kind == "raise" and error.startswith(f"rank {rank} failed: ") else ""


def _proved(kind: str, records: Timed, scratch: Path, rank: int, note: Note) -> str:
    # The ledger's lines on a rank come from the coordinator, and may follow while the rank stands still.
    heard = [(when, r) for when, r in records if isinstance(r, RankEvent) and r.rank == rank and when >= note.at]
    match kind:
        case "crash":
            return _ending(records, rank, "killed by signal 9")
        case "stop":
            return _ending(records, rank, "silent for")
        case "raise":
            failed = [r.error for _, r in records if isinstance(r, Failed) and r.rank == rank]
            return f"rank {rank}: {failed[0]}" if failed else ""
        case "pause":
            return _stood(note, rank, [when for when, _ in heard])
        case "slow":
            return _slower(heard, rank)
        case "lost message":
            lost = scratch / f"lost-{rank}"
            return f"rank {rank}: {regular_files.content(lost).decode()} was lost" if lost.exists() else ""
        case "disk full":
            errors = [r.error for _, r in heard if isinstance(r, Saved) and r.error]
            return f"rank {rank}: {errors[0].partition(':')[0]}" if errors else ""
    raise ValueError(f"no proof of {kind}")


def _stood(note: Note, rank: int, heard: Sequence[float]) -> str:
    """Say for how long a rank sent nothing between its notes before and after the pause. Its other threads may send
    before the process stands still, and again before the noting thread gets a core."""
    if note.until is None:
        return ""
    times = sorted([note.at, note.until, *(when for when in heard if when < note.until)])
    longest = max(after - before for before, after in pairwise(times))
    return f"rank {rank} stood still for {longest:.2f} s" if longest >= PAUSE_S else ""


def _ending(records: Timed, rank: int, words: str) -> str:
    """Return the recorded end of a rank's process, if it contains these words; it may also be the end of the run."""
    for _, record in records:
        about = isinstance(record, Lost | Drop) and record.rank == rank
        if (
            about or (isinstance(record, Abort) and re.search(rf"rank {rank}\b", record.reason))
        ) and words in record.reason:
            return f"rank {rank}: {record.reason[:80]}"
    return ""


def _slower(heard: Sequence[tuple[float, Any]], rank: int) -> str:
    from bench.faults.exercise import STEP_S

    work = [(r.busy_s, r.steps) for _, r in heard[1:] if isinstance(r, Progress)]
    steps = sum(count for _, count in work)
    each = sum(busy for busy, _ in work) / steps if steps else 0.0
    return f"rank {rank}: its later steps took {1e3 * each:.1f} ms" if each >= SLOW * STEP_S / 2 else ""
