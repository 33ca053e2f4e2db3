"""Whether what lies in a run folder fits together, so that checks may take it at its word.

Files are read one by one by others, each against its own schema; here they are held against each other: an `events.jsonl`
that lacks lines, a `metrics.json` that was edited. Says what is wrong, and judges no training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypedDict

import msgspec

from bench.base.figures import plural
from bench.results.cells import LARGEST
from bench.results.runfolder import CONFIG, EVENTS, METRICS, Run
from bench.results.schema import Metrics
from bench.validate.records import Records, records
from ddp.sketches import decode

ROOM = 2
"""Samples that were granted, at most, for one that a finished run reports as trained: beyond that, reports are missing."""


class _Averaging(TypedDict, total=False):
    gamma: float
    elastic: float | None
    outer: str
    wire: str


class _Settings(TypedDict, total=False):
    """What is read of `config.json`; an earlier version may have had less."""

    train: dict[str, Any]
    training: dict[str, Any]
    data: dict[str, Any]
    loader: dict[str, Any]
    cluster: dict[str, Any]
    profile: dict[str, Any]
    policy: dict[str, Any] | None
    averaging: _Averaging | None
    depth: int | None


def consistent(run: Run) -> None:
    """Raise ValueError, one line that names the file, if configuration or result cannot be, or contradict each other."""
    try:
        msgspec.convert(run.config, _Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"{run.path / CONFIG}: not the configuration of a run: {error}") from None
    if wrong := _result(run.metrics):
        raise ValueError(f"{run.path / METRICS}: {wrong}")


def legible(run: Run) -> None:
    """Raise ValueError if the checks cannot go by what lies in the folder: `consistent`, and the records."""
    consistent(run)
    try:
        known = records(run)
    except OSError as error:
        raise ValueError(f"{run.path / EVENTS}: {error.strerror}") from None
    if known is not None and (wrong := _events(run.metrics, known)):
        raise ValueError(f"{run.path / EVENTS}: {wrong}")


def sound(runs: Sequence[Run], test: Callable[[Run], None] = consistent) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Return the runs that pass the test, and a line for each that does not."""
    kept, problems = [], []
    for run in runs:
        try:
            test(run)
            kept.append(run)
        except ValueError as error:
            problems.append((run, str(error)))
    return kept, problems


def _result(m: Metrics) -> str:
    """Say what is wrong with a result alone."""
    for name, values in _by_rank(m):
        if len(values) != m.world_size:
            return f"{name}: {plural(len(values), 'rank')}, but world_size is {m.world_size}"
    if min(m.epochs_planned, m.batch_size) < 1 or m.lr * m.lr_scale <= 0:
        return f"{m.epochs_planned} epochs of batches of {m.batch_size} at lr {m.lr:g} x {m.lr_scale:g} are no training"
    for name, value in _numbers(m.model_dump()):
        if not abs(value) <= LARGEST:
            return f"{name} is beyond {LARGEST:g}, which is no measurement"
    speed = m.throughput.samples_per_s
    if speed is not None and speed < 0:
        return f"throughput.samples_per_s is {speed:g}, which is no speed"
    return ""


def _by_rank(m: Metrics) -> Iterator[tuple[str, Sequence[object]]]:
    """List what has a value for each rank, by name, where it is there at all."""
    if m.ledger is not None:
        yield from ((f"ledger.epochs[{n}].by_rank", row.by_rank) for n, row in enumerate(m.ledger.epochs))
    if m.breakdown:
        yield "breakdown", m.breakdown
    if m.elche is not None:
        yield "elche.counts", m.elche.counts
        yield from ((f"elche.plans[{n}].counts", plan.counts) for n, plan in enumerate(m.elche.plans))
        for n, window in enumerate(m.elche.windows):
            yield f"elche.windows[{n}].steps", window.steps
            yield f"elche.windows[{n}].ms_per_batch", window.ms_per_batch


def _numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """List all numbers in it, by name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _numbers(inner, f"{name}[{index}]")
    elif isinstance(value, int | float):
        yield name, value


def _events(m: Metrics, known: Records) -> str:
    """Say what is wrong with records, by themselves or against the result."""
    ranks = {event.rank for event in known.ready}
    if ranks != set(range(m.world_size)):
        who = f"ranks {_listed(ranks)}" if ranks else "no rank"
        return f"tells of {who} that became ready, but world_size is {m.world_size}: lines are missing, or were changed"
    by_rank = (known.progress, known.snapshots, known.averaged, known.evaluated)
    strange = {event.rank for events in by_rank for event in events} - ranks
    if strange:
        return f"tells of ranks {_listed(strange)}, but world_size is {m.world_size}"
    samples, trained = known.ready[0].samples, sum(event.samples for event in known.progress)
    if known.progress and not 0 < samples * m.epochs_planned <= ROOM * trained:
        planned = f"{m.epochs_planned} epochs of {samples}"
        return f"{trained} samples are reported as trained, of {planned}: lines are missing"
    return _sketches(known)


def _sketches(known: Records) -> str:
    """Say what is wrong with the form of the sketches: all of one run have the groups that rank 0 names."""
    for text in filter(None, known.sketches()):
        try:
            rows = len(decode(text).sizes)
        except ValueError as error:
            return str(error)
        if rows != len(known.groups):
            return f"sketches have {rows} groups, and {len(known.groups)} are named"
    return ""


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)[:8])) + (", ..." if len(numbers) > 8 else "")
