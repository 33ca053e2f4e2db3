"""A draft of the ranks' states: several changes cost one new state, and derived totals are counted once.

Owns counts and grants by rank while they change. Knows no round, no plan and no ledger."""

from __future__ import annotations

from typing import Any

from ddp.core.state.rank_state import RankState
from ddp.core.state.totals import Totals, count, counted
from ddp.core.values.persistent import Row


class RankDraft:
    """States of ranks that are being changed. `window` and `milestones`: by rank, or empty."""

    def __init__(
        self,
        ranks: Row[RankState],
        window: tuple[int, ...],
        milestones: tuple[int, ...],
        totals: Totals,
        granted: dict[int, int],
        live: tuple[int, ...],
    ) -> None:
        self._ranks, self._window, self._milestones = ranks, window, milestones
        self._totals, self._granted, self._live = totals, granted, live
        self.changed: dict[int, RankState] = {}
        """Rank -> its new state."""

    def __getitem__(self, rank: int) -> RankState:
        return self.changed.get(rank) or self._ranks[rank]

    def put(self, rank: int, state: RankState) -> None:
        """Replace the state of one rank."""
        self.changed[rank] = state

    def fields(self) -> dict[str, Any]:
        """Return the fields of `CoordinatorState` that the changes affect: the states, and what is derived from them."""
        ranks, window, milestones = self._ranks, self._window, self._milestones
        bits, granted, live = self._totals.bits, self._granted.copy(), self._live
        row = ranks.update(self.changed)
        most = 2 * len(self.changed) > len(row)  # then all are counted anew, which is half the work
        for (rank, new), old in zip(self.changed.items(), ranks.pick(self.changed), strict=True):
            if not most:
                part, milestone = window[rank] if window else 0, milestones[rank] if milestones else 0
                bits += count(new, part, milestone) - count(old, part, milestone)
            if new.queue is not old.queue:
                _regrant(granted, old, new)
            if new.alive != old.alive:
                others = tuple(r for r in live if r != rank)
                live = tuple(sorted((*others, rank))) if new.alive else others
        totals = counted(row, window, milestones) if most else Totals(bits)
        return {"ranks": row, "totals": totals, "granted": granted, "live": live}


def _regrant(granted: dict[int, int], old: RankState, new: RankState) -> None:
    """Count the steps granted to a rank and not done, by epoch."""
    chunks = old.queue + new.queue
    epoch, more = chunks[0].epoch, new.queued - old.queued
    for chunk in chunks:
        if chunk.epoch != epoch:
            break
    else:  # the usual case: all are of one epoch
        _add(granted, epoch, more)
        return
    for epoch in {chunk.epoch for chunk in chunks}:
        _add(granted, epoch, _steps(new, epoch) - _steps(old, epoch))


def _add(granted: dict[int, int], epoch: int, more: int) -> None:
    left = granted.get(epoch, 0) + more
    if left:
        granted[epoch] = left
    else:
        granted.pop(epoch, None)


def _steps(state: RankState, epoch: int) -> int:
    """Return the steps of `epoch` in a rank's queue."""
    return sum(chunk.steps for chunk in state.queue if chunk.epoch == epoch)
