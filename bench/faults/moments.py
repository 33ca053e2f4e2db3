"""Waits for a cell's moment in a simulated run, then injects its fault. Judges nothing; the records tell the
outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.faults.meaning import FaultCell, injected
from bench.faults.modes import FaultMode
from ddp.core.messages.commands import Stop
from ddp.sim import Simulation

DELAY_S = 0.03
"""Seconds from the begin of a slice to the fault; all slices are longer."""
PAUSE_S, SLOW, LAG_S = 4.0, 4.0, 0.4
SLICES = {
    "first window": "forward",
    "step": "forward",
    "collective": "exchange",
    "snapshot": "copy",
    "evaluation": "evaluate",
    "checkpoint": "checkpoint",
}
"""Phase -> kind of the slice during which the fault comes."""
FAULTS = injected(PAUSE_S, SLOW)
"""Kind -> (fault of the simulation, its value)."""


@dataclass
class Striker:
    """Hits each rank of `hit` once, in the phase of `cell`. Bind it to a simulation before that runs."""

    cell: FaultCell
    mode: FaultMode
    hit: tuple[int, ...]
    struck: dict[int, float] = field(default_factory=dict)
    """Rank -> time when it was hit."""
    lagging: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """Rank with a slow link -> (time, extra seconds) of each transfer since."""
    slices: list[tuple[int, str, float, float]] = field(default_factory=list)
    """(rank, kind, start, stop) of the slices of the ranks to hit."""

    def bind(self, simulation: Simulation) -> None:
        """Register with `simulation`; faults of the phase `start` are injected at once."""
        self._simulation = simulation
        simulation.began, simulation.listen, simulation.measured = self._began, self._listen, self._measured
        if self.cell.phase == "start":
            for rank in self.hit:
                if self.cell.kind in ("crash", "stop", "raise"):
                    simulation.befall(rank, "lose")  # its message that it is ready
                self._strike(rank)

    def lag(self, rank: int) -> float:
        """Return the extra seconds that a message of `rank` takes now."""
        if rank not in self.lagging:
            return 0.0
        self.lagging[rank].append((self._simulation.now, LAG_S))
        return LAG_S

    def wire(self, members: tuple[int, ...], number: int) -> float:
        """Return the seconds that a collective takes now."""
        return 0.2 + max((self.lag(rank) for rank in members if rank in self.lagging), default=0.0)

    def _measured(self, rank: int, kind: str, start: float, stop: float, seq: int) -> None:
        if rank in self.hit:
            self.slices.append((rank, kind, start, stop))

    def _began(self, rank: int, kind: str) -> None:
        if rank in self.hit and rank not in self.struck and SLICES.get(self.cell.phase) == kind and self._ripe(rank):
            self._simulation.later(DELAY_S, self._inside, rank, kind, self._simulation.now)

    def _ripe(self, rank: int) -> bool:
        state = self._simulation.ranks[rank]
        if self.cell.phase == "first window":
            return state.done == 0
        if self.cell.phase in ("step", "collective"):
            return state.done >= 3 if self.mode.in_step else self.cell.phase == "collective" or state.after >= 0
        return True

    def _inside(self, rank: int, kind: str, since: float) -> None:
        state = self._simulation.ranks[rank]
        if rank not in self.struck and state.alive and (state.doing, state.since) == (kind, since):
            self._strike(rank)

    def _listen(self, at: float, record: Any) -> None:
        if self.cell.phase == "end" and isinstance(record, Stop) and record.rank in self.hit:
            self._stopping(record.rank)

    def _stopping(self, rank: int) -> None:
        if rank not in self.struck and self._simulation.ranks[rank].alive:
            self._strike(rank)

    def _strike(self, rank: int) -> None:
        self.struck[rank] = self._simulation.now
        if self.cell.kind == "slow link":
            self.lagging[rank] = []
        else:
            self._simulation.befall(rank, *FAULTS[self.cell.kind])
