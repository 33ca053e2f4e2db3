"""Selects the records of an earlier run that count for a run resumed from its checkpoint: those of work that the
checkpoint's model contains.

Knows no configuration, and nothing of how a checkpoint is made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.results import chain
from bench.results.analysis.faults import past
from bench.results.runfolder import EVENTS
from bench.runner.resume import ResumeSource
from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import CoordinatorCheckpoint, Evaluate
from ddp.core.messages.events import Averaged, Evaluated, Merged, Progress, Ready, Resumed, Saved, Snapshot
from ddp.core.messages.run_bounds import Attempt, Launched, RunEnd, RunHeader
from ddp.core.samples.spans import Span, Spans, union
from ddp.process.codec import decode, encode


def earlier(source: ResumeSource, at: float, world_size: int | None = None) -> list[bytes]:
    """Return, as lines, the records of the work that the checkpoint contains, shifted in time to end at `at`, and a
    record that the run resumes then with `world_size` ranks (None: as many as before). Raise ValueError if the records
    lack the checkpoint or were changed."""
    index, saved = source.checkpoint.manifest.index, source.checkpoint.coordinator
    records = _records(source.folder / EVENTS)
    # Not the record of its publication, which a process killed right after that did not come to write.
    savers = {record.rank: when for when, record in records if isinstance(record, Saved) and record.index == index}
    cut = max(savers.values(), default=0.0)
    if not savers.keys() >= set(source.checkpoint.manifest.members):
        raise ValueError(f"{source.folder / EVENTS}: does not tell of checkpoint {index}; begin the run anew")
    limits = _limits(records, index, saved)
    try:
        counts = _Counting(saved, limits)
        known = [(when, record) for when, record in records if when <= cut and counts(record)]
    except AssertionError as error:  # spans that cannot be
        raise ValueError(f"{source.folder / EVENTS}: not the records of a run ({error}); begin the run anew") from error
    lines = []
    for when, record in known:
        body = encode(record, when) if not hasattr(record, "at") else encode(record)
        moved = msgspec.json.decode(body) | {"at": when - cut + at}
        lines.append(msgspec.json.encode(moved))
    before = source.checkpoint.manifest.identity.world_size
    ranks = before if world_size not in (None, before) else 0
    again = _beyond(records, known)
    lost, why = past(records, cut, before, end=not source.because), source.because
    since_s = (max(at - cut, 0.0), max(at - records[-1][0], 0.0)) if why else (records[-1][0] - cut, 0.0)
    resumed = Resumed(at, index, saved.epochs, saved.samples, str(source.folder), why, again, since_s, ranks, lost)
    return [*lines, encode(resumed)]


def attempt(folder: Path, world_size: int, absent: int = 0) -> Attempt:
    """Return what is known of a run from which none can be resumed, begun with `absent` ranks fewer. Raise ValueError for
    damaged records."""
    records = _records(folder / EVENTS)
    launched = next(at for at, record in records if isinstance(record, Launched))
    samples = sum(record.samples for _, record in records if isinstance(record, Progress))
    ready, ended = [at for at, record in records if isinstance(record, Ready)], records[-1][0]
    begun = max(ready) if len(ready) >= world_size - absent else ended
    return Attempt(launched, begun, ended, samples, past(records, launched, world_size))


def _beyond(records: Sequence[tuple[float, Any]], known: Sequence[tuple[float, Any]]) -> int:
    """Return the number of samples that ranks reported beyond the `known` records."""
    every, kept = (
        sum(record.samples for _, record in part if isinstance(record, Progress)) for part in (records, known)
    )
    return every - kept


def _records(path: Path) -> list[tuple[float, Any]]:
    """Read (time, record) of every whole line that the run itself recorded. Raise ValueError."""
    try:
        lines = list(chain.lines(path, torn=True))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; begin the run anew") from error
    except ValueError as error:
        raise ValueError(f"{error}; begin the run anew") from error
    try:
        records = [(float(msgspec.json.decode(line)["at"]), decode(line)) for line in lines]
    except (ProtocolError, msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not the records of a run ({error}); begin the run anew") from error
    return [(at, record) for at, record in records if not isinstance(record, RunHeader | RunEnd)]


def _limits(records: Sequence[tuple[float, Any]], index: int, saved: CoordinatorCheckpoint) -> dict[int, float]:
    """Return rank -> time until which its training is in the checkpoint: when it sent its snapshot for the average, or
    saved."""
    limits: dict[int, float] = {}
    last: dict[int, float] = {}
    for _, record in records:
        if isinstance(record, Snapshot) and record.round == saved.rounds - 1:
            limits[record.rank] = record.at
        elif isinstance(record, Saved) and record.index == index:
            limits.setdefault(record.rank, record.at)
        elif isinstance(record, Snapshot | Averaged) and record.round < saved.rounds:
            last[record.rank] = record.at
    return last | limits


class _Counting:
    """Tells whether a record belongs to work that the checkpoint's model contains."""

    def __init__(self, saved: CoordinatorCheckpoint, limits: Mapping[int, float]) -> None:
        self._saved, self._limits = saved, limits
        self._merged = {ledger.epoch: ledger.merged for ledger in saved.ledgers}
        """Unfinished epoch -> its spans that are in the model, ascending."""

    def __call__(self, record: Any) -> bool:
        match record:
            case Progress():
                return record.at <= self._limits.get(record.rank, record.at)
            case Merged() if record.epoch in self._merged:
                merged = self._merged[record.epoch]
                return all(_holds(merged, span) for span in union((), record.spans))
            case Merged() | Evaluate() | Evaluated():
                return record.epoch < self._saved.begun and record.epoch not in self._merged
        return bool(getattr(record, "round", -1) < self._saved.rounds)


def _holds(spans: Spans, span: Span) -> bool:
    """Tell whether `span` lies in one of the `spans`, which ascend."""
    place = bisect_right(spans, span[0], key=lambda known: known[0]) - 1
    return place >= 0 and span[1] <= spans[place][1]
