"""Injects faults into a rank, in its own process: the rank's part of a fault script (`ddp.core.settings.faults`).

Knows how to cause a fault, not its consequences: the code that must detect faults never looks at anything in here."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from ddp.core.messages.events import Alive, Trained
from ddp.core.settings.faults import LASTING, Fault, parse
from ddp.process.channel import Channel
from ddp.process.codec import Record
from ddp.process.slowdown import Slowdown


def struck(scratch: Path, rank: int) -> tuple[Fault, ...]:
    """Return the faults that `rank` has met so far, in all its processes."""
    notes = _notes(scratch, rank)
    return tuple(map(parse, notes.read_text().splitlines())) if notes.exists() else ()


def _notes(scratch: Path, rank: int) -> Path:
    return scratch / f"struck-{rank}"


class LossyChannel(Channel):
    """A channel that can lose a message like a broken network: the sender does not notice."""

    def __init__(self, connection: Connection, notes: Path | None = None) -> None:
        """`notes`: file in which to write the type of each lost message."""
        super().__init__(connection)
        self._losing, self._lost = 0, notes

    def lose(self) -> None:
        """Lose the next message that matters to the run (not a sign of life or a tally)."""
        self._losing += 1

    def send(self, message: Record) -> None:
        """Send one message, or lose it. Raises PeerGone."""
        if self._losing and not isinstance(message, (Alive, Trained)):
            self._losing -= 1
            if self._lost is not None:
                self._lost.write_text(type(message).__name__)
        else:
            super().send(message)


class FaultInjector:
    """The faults of `rank` that are still to come from its step number `done` on.

    A resumed run is as slow as before: lasting faults of earlier steps begin again at once."""

    def __init__(
        self,
        faults: Sequence[Fault],
        rank: int,
        slowdown: Slowdown,
        lose: Callable[[], None],
        flip: Callable[[Fault], None],
        done: int = 0,
        scratch: Path | None = None,
    ) -> None:
        """`scratch`: folder in which to note the faults that happened, for when the rank is restarted."""
        self._notes = None if scratch is None else _notes(scratch, rank)
        self._faults, self._slowdown, self._lose = [fault for fault in faults if fault.rank == rank], slowdown, lose
        self._flip = flip
        for fault in sorted(self._faults, key=lambda fault: fault.step):
            if fault.step < done and fault.kind in LASTING:
                self._last(fault)

    def meet(self, step: int) -> None:
        """Inject the faults of step number `step` before it runs. Each happens once, even if the step is repeated."""
        for fault in [fault for fault in self._faults if fault.step == step]:
            self._faults.remove(fault)
            self._happen(fault)

    def _happen(self, fault: Fault) -> None:
        if self._notes is not None:
            with self._notes.open("a") as notes:
                notes.write(f"{fault}\n")
        match fault.kind:
            case "crash" | "stall" | "raise":
                strike(fault.kind, f"the fault script says so: {fault}")
            case "lose":
                self._lose()
            case "flip":
                self._flip(fault)
            case _:
                self._last(fault)

    def _last(self, fault: Fault) -> None:
        """Begin a lasting fault, or end all of them (`heal`)."""
        match fault.kind:
            case "slow":
                self._slowdown.slow_down(fault.value)
            case "input":
                self._slowdown.delay_input(fault.value)
            case "link":
                self._slowdown.slow_link(fault.value)
            case "heal":
                self._slowdown.heal()


def strike(kind: str, why: str) -> None:
    """Kill (`crash`) or stop (`stall`) this process, or raise a RuntimeError that says `why` (`raise`)."""
    match kind:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stall":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise RuntimeError(why)
