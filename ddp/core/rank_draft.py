"""A draft of the ranks' states, with their derived totals: several changes cost one new state.

Owns counts and grants by rank while they change. Knows no round, no plan and no ledger."""

from __future__ import annotations

from ddp.core.persistent import RankSet, Row
from ddp.core.rank_state import RankState, Totals, count
from ddp.core.spans import Chunk


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
        self._ranks, self._window, self._milestones = ranks.edit(), window, milestones
        self._bits, self.granted, self.live = totals.bits, granted, live
        """Derived fields, as in `CoordinatorState`."""
        self._copied = False
        self._changed: list[int] = []

    def __getitem__(self, rank: int) -> RankState:
        return self._ranks[rank]

    def put(self, rank: int, state: RankState) -> None:
        """Replace the state of one rank."""
        old = self._ranks[rank]
        part = self._window[rank] if self._window else 0
        milestone = self._milestones[rank] if self._milestones else 0
        self._bits += count(state, part, milestone) - count(old, part, milestone)
        if state.queue is not old.queue:
            self._regrant(old.queue, state.queue)
        if state.alive != old.alive:
            others = tuple(r for r in self.live if r != rank)
            self.live = tuple(sorted((*others, rank))) if state.alive else others
        self._ranks[rank] = state
        self._changed.append(rank)

    def ranks(self) -> Row[RankState]:
        """Return all ranks' states. The draft must not be changed afterwards."""
        return self._ranks.done()

    @property
    def totals(self) -> Totals:
        """Number of ranks in each condition."""
        return Totals(self._bits)

    @property
    def changed(self) -> RankSet:
        """Ranks whose state was replaced."""
        return RankSet(self._changed)

    def _regrant(self, old: tuple[Chunk, ...], new: tuple[Chunk, ...]) -> None:
        if not self._copied:
            self.granted, self._copied = self.granted.copy(), True
        steps = self.granted
        if old and new == old[1:]:  # the usual case: the first grant is done
            old, new = old[:1], ()
        elif new and new[:-1] == old:  # or one grant is added
            old, new = (), new[-1:]
        for chunk in new:
            steps[chunk.epoch] = steps.get(chunk.epoch, 0) + chunk.steps
        for chunk in old:
            left = steps[chunk.epoch] - chunk.steps
            if left:
                steps[chunk.epoch] = left
            else:
                del steps[chunk.epoch]
