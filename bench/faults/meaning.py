"""The matrix as a table: which cells there are, which have no meaning and why, and what is documented to come of the others.

Pure: plays nothing, reads nothing. `docs/reference/faults.md` says the same in words; tests hold the cells to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, cast

from ddp.backends import BACKENDS, Acts, paired_backends
from ddp.core.policies import EVERY_STEP, POLICIES, Policy, meets_every_step

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
WINDOW, LENGTHS = 3, ("anchor", "max_anchor", "base")
"""Steps of a window, and the settings of policies that say so."""
FATAL = ("crash", "stop", "raise")
"""Kinds that cost the rank."""
HARMLESS = ("pause", "slow", "slow link")


class FaultOutcome(StrEnum):
    """What comes of a fault."""

    UNHURT = "unhurt"
    """No rank is lost, and every sample is in the model once."""
    LOST = "went on"
    """Ranks are lost, others go on, and every sample is in the model once."""
    ENDED = "ended"
    """The run ends with an error, or with its coordinator."""
    RESUMED = "resumed"
    """The run ends, and the next one goes on from a checkpoint; every sample is in the model once."""


@dataclass(frozen=True)
class FaultCell:
    """One kind in one phase on some ranks of one mode."""

    kind: str
    phase: str
    ranks: str
    mode: str

    def __str__(self) -> str:
        return f"{self.mode}/{self.kind}/{self.phase}/{self.ranks}"


@dataclass(frozen=True)
class FaultMode:
    """What the table must know of a mode."""

    name: str
    policy: str
    backend: str

    @property
    def in_step(self) -> bool:
        """Gradients are averaged inside steps."""
        return meets_every_step(self.policy) and Acts.STEP in BACKENDS[self.backend].acts

    @property
    def snapshots(self) -> bool:
        """The coordinator's process averages snapshots; ranks meet in no collective."""
        return Acts.SNAPSHOT in BACKENDS[self.backend].acts

    @property
    def sharded(self) -> bool:
        """No rank can be done without: the run ends with the first that is lost."""
        return not BACKENDS[self.backend].averages

    def windows(self) -> Policy:
        """Return the policy, with short windows where it has a setting for them."""
        kind = POLICIES[self.policy]
        return kind(**{field.name: WINDOW for field in fields(cast(Any, kind)) if field.name in LENGTHS})


_SHARDED = [name for name, spec in BACKENDS.items() if not spec.averages and not spec.torch_native]
_PAIRED = [(backend, policy) for backend in paired_backends() for policy in sorted(POLICIES)]
MODES = {f"{backend}_{policy}": FaultMode(f"{backend}_{policy}", policy, backend) for backend, policy in _PAIRED}
MODES |= {name: FaultMode(name, EVERY_STEP, name) for name in _SHARDED}
"""Modes of the matrix. In virtual time `zero1` to `zero3` are one run of the core, which knows no shards."""


def cells(modes: Iterable[str]) -> list[FaultCell]:
    """Return all cells of the modes, with a meaning or without."""
    return [FaultCell(k, p, r, mode) for mode in modes for k in KINDS for p in PHASES for r in RANKS]


def chosen(ranks: str, size: int) -> tuple[int, ...]:
    """Return the ranks, of `size`, that a choice names; `two` are neighbours in the middle."""
    middle = (size - 1) // 2
    return {"first": (0,), "last": (size - 1,), "two": (middle, middle + 1), "all": tuple(range(size))}[ranks]


def meaningless(cell: FaultCell, world: str) -> str:
    """Return why the cell has no meaning in that world; empty: it has one."""
    mode = MODES[cell.mode]
    checks: tuple[tuple[bool, str], ...] = (
        (cell.phase == "collective" and mode.snapshots, "ranks of this mode meet in no collective"),
        (cell.phase == "snapshot" and not mode.snapshots, "ranks of this mode lay down no snapshots"),
        (cell.kind == "slow" and cell.phase == "end", "no step follows"),
        *_of_files(cell),
        *_of_the_coordinator(cell),
        *(_of_virtual_time(cell) if world == VIRTUAL else _of_processes(cell)),
    )
    return next((why for applies, why in checks if applies), "")


def _of_files(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    writes = ("checkpoint",)
    yield cell.kind == "disk full" and cell.phase not in writes, "a rank writes nothing to disk in this phase"
    yield cell.kind == "corrupt checkpoint" and cell.phase not in writes, "no checkpoint is written in this phase"


def _of_the_coordinator(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    killed = cell.kind == "coordinator killed"
    yield killed and cell.ranks != "all", "there is one coordinator, for all ranks: see `all`"


def _of_virtual_time(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    yield cell.kind == "corrupt checkpoint", "virtual time has no files: see processes"
    yield cell.kind == "coordinator killed", "the coordinator plays virtual time: see processes"


def _of_processes(cell: FaultCell) -> Iterator[tuple[bool, str]]:
    yield cell.kind == "slow link", "emulated links are slow for a whole run: see virtual time"


def documented(cell: FaultCell) -> frozenset[FaultOutcome]:
    """Return what may come of a cell that has a meaning, where every lost rank is started again."""
    kind, ends, lost = cell.kind, FaultOutcome.ENDED, FaultOutcome.LOST
    if kind == "coordinator killed":
        return frozenset({ends} if cell.phase in ("start", "first window") else {FaultOutcome.RESUMED})
    if kind == "corrupt checkpoint":
        return frozenset({FaultOutcome.RESUMED})
    if kind in HARMLESS or kind == "disk full":
        return frozenset({FaultOutcome.UNHURT})
    if cell.phase == "start":
        return frozenset({ends})  # the run has not begun: a rank was not ready
    needed = MODES[cell.mode].sharded or cell.ranks == "all"
    if kind == "lost message":  # of some messages, such as a sign that a round is over, nothing else hangs
        return frozenset({FaultOutcome.UNHURT, ends} if needed else {FaultOutcome.UNHURT, lost})
    same_error = kind == "raise" and cell.ranks == "two"
    return frozenset({ends} if needed or same_error else {lost})
