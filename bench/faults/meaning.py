"""The matrix as a table: its cells, which of them have no meaning and why, and the documented outcomes of the others.

Pure: plays nothing, reads nothing. `docs/reference/faults.md` says the same as text; tests compare both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from bench.faults.modes import MODES, twin

KINDS = {
    "crash": "the process is killed",
    "stop": "the process stands still for ever",
    "pause": "the process stands still for less than half the deadline",
    "raise": "user code raises an exception",
    "slow": "steps take longer from here on",
    "slow link": "messages and collectives take longer from here on",
    "lost message": "the next message to the coordinator is lost",
    "disk full": "there is no room for what is written",
    "corrupt checkpoint": "a part of a checkpoint is not what was written",
    "coordinator killed": "the coordinator's process is killed",
}
INJECTED = {
    "crash": "crash",
    "stop": "stall",
    "pause": "pause",
    "raise": "raise",
    "slow": "slow",
    "lost message": "lose",
    "disk full": "full",
}
"""Kind -> the fault that a rank is given, in virtual time as in processes."""
PHASES = {
    "start": "before the rank is ready",
    "first window": "in its first step",
    "step": "in a later step",
    "collective": "in a collective among ranks",
    "snapshot": "while it lays down a snapshot, or applies an average",
    "evaluation": "in an evaluation",
    "checkpoint": "while it writes its part of a checkpoint",
    "end": "when it is ordered to stop",
}
RANKS = ("first", "last", "two", "all")
VIRTUAL, PROCESSES = "virtual", "processes"
WORLDS = (VIRTUAL, PROCESSES)
HARMLESS = ("pause", "slow", "slow link")
WHOLE = ("crash", "pause", "disk full")
"""Kinds that hit a process with all its ranks."""


class FaultOutcome(StrEnum):
    """The outcome of a fault."""

    UNHURT = "unhurt"
    """No rank is lost, and every sample is in the model exactly once."""
    LOST = "went on"
    """Ranks are lost, others go on, and every sample is in the model exactly once."""
    ENDED = "ended"
    """The run ends with an error, or the coordinator dies."""
    RESUMED = "resumed"
    """The run ends, and the next one resumes from a checkpoint; every sample is in the model exactly once."""


@dataclass(frozen=True)
class FaultCell:
    """One kind of fault, in one phase, on some ranks, in one mode."""

    kind: str
    phase: str
    ranks: str
    mode: str

    def __str__(self) -> str:
        return f"{self.mode}/{self.kind}/{self.phase}/{self.ranks}"


def injected(pause_s: float, slow: float) -> dict[str, tuple[str, float]]:
    """Return kind -> (fault, its value). `pause_s`: seconds of a pause; `slow`: factor on the time of slow steps."""
    values = {"pause": pause_s, "slow": slow}
    return {kind: (fault, values.get(kind, 0.0)) for kind, fault in INJECTED.items()}


def cells(modes: Iterable[str]) -> list[FaultCell]:
    """Return all cells of the modes, with or without meaning."""
    return [FaultCell(k, p, r, mode) for mode in modes for k in KINDS for p in PHASES for r in RANKS]


def chosen(ranks: str, size: int) -> tuple[int, ...]:
    """Return the rank numbers that a choice names, of `size` ranks; `two` are neighbours in the middle."""
    middle = (size - 1) // 2
    return {"first": (0,), "last": (size - 1,), "two": (middle, middle + 1), "all": tuple(range(size))}[ranks]


def meaningless(cell: FaultCell, world: str) -> str:
    """Return why the cell has no meaning in that world; empty: it has one."""
    mode = MODES[cell.mode]
    checks: tuple[tuple[bool, str], ...] = (
        (
            cell.phase == "collective" and (mode.snapshots or mode.one_process),
            "ranks of this mode meet in no collective",
        ),
        (cell.phase == "snapshot" and not mode.snapshots, "ranks of this mode lay down no snapshots"),
        (cell.phase == "checkpoint" and not mode.checkpoints, "this mode makes no checkpoints"),
        (cell.kind == "slow" and cell.phase == "end", "no step follows"),
        *_of_files(cell),
        *_of_the_coordinator(cell),
        *(_of_one_process(cell) if mode.one_process else ()),
        *(_of_virtual_time(cell) if world == VIRTUAL else _of_processes(cell)),
    )
    return next((why for applies, why in checks if applies), "")


def _of_files(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    writes = ("checkpoint",)
    yield cell.kind == "disk full" and cell.phase not in writes, "a rank writes nothing to disk in this phase"
    yield cell.kind == "corrupt checkpoint" and cell.phase not in writes, "no checkpoint is written in this phase"


def _of_the_coordinator(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    killed = cell.kind == "coordinator killed"
    yield killed and MODES[cell.mode].one_process, "there is no coordinator: see `crash`"
    yield killed and cell.ranks != "all", "there is one coordinator, for all ranks: see `all`"


def _of_one_process(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    yield cell.kind == "stop", "the process stands still as a whole, and nobody is left to notice"
    yield cell.kind == "slow link", "ranks of one process have no links"
    yield cell.kind == "lost message", "ranks of one process send no messages"
    yield MODES[cell.mode].one_rank and cell.ranks != "all", "there is one rank: see `all`"
    yield cell.kind in WHOLE and cell.ranks != "all", "the process is all ranks: see `all`"


def _of_virtual_time(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    yield cell.kind == "corrupt checkpoint", "virtual time has no files: see processes"
    yield cell.kind == "coordinator killed", "the coordinator plays virtual time: see processes"
    yield MODES[cell.mode].one_process, "virtual time plays the coordinator, which this mode has not: see processes"
    same = twin(cell.mode)
    yield same != cell.mode, f"in virtual time the same run as {same}"


def _of_processes(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    yield cell.kind == "slow link", "emulated links are slow for a whole run: see virtual time"


def documented(cell: FaultCell) -> frozenset[FaultOutcome]:
    """Return the documented outcomes of a cell that has a meaning, if every lost rank is restarted."""
    kind, mode = cell.kind, MODES[cell.mode]
    ends, lost = FaultOutcome.ENDED, FaultOutcome.LOST
    if kind == "coordinator killed" or (kind == "crash" and mode.one_process):
        early = cell.phase in ("start", "first window")
        return frozenset({ends} if early or not mode.checkpoints else {FaultOutcome.RESUMED})
    if kind == "corrupt checkpoint":
        return frozenset({FaultOutcome.RESUMED})
    if kind in HARMLESS or kind == "disk full":
        return frozenset({FaultOutcome.UNHURT})
    if cell.phase == "start":
        return frozenset({ends})  # a rank was not ready, so the run has not begun
    needed = mode.sharded or mode.one_process or cell.ranks == "all"
    if kind == "lost message":  # nothing else waits for some messages, such as the end of a round
        several = {ends, lost} if cell.ranks == "all" else {lost}  # one rank may be back before the next is lost
        return frozenset({FaultOutcome.UNHURT, *({ends} if mode.sharded or mode.one_process else several)})
    same_error = kind == "raise" and cell.ranks == "two"
    return frozenset({ends} if needed or same_error else {lost})
