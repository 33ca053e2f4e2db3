"""Timeouts: when a silent rank counts as lost, and when a collective is stuck. `recovery` handles the loss."""

from __future__ import annotations

from ddp.core.membership.recovery import lose
from ddp.core.messages.commands import Abort
from ddp.core.messages.events import Tick
from ddp.core.rounds.round_actions import Output
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.round_state import Phase
from ddp.core.values.frozen import replace

STUCK = 2
"""A collective is stuck after so many deadlines in which ranks sent only signs of life."""
WRITING = 5
"""Number of deadlines more, while others may wait there for a rank that writes its part of a checkpoint."""
START_UP = 5
"""Number of deadlines that a rank may take to get ready: it imports modules, reads data, builds its model."""


def give_up(cohort: CoordinatorState, event: Tick) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Give up ranks that owe something and are silent beyond the deadline; abort a run whose collective is stuck."""
    cohort = cohort.heard(event.at) if event.away_s else cohort
    deadline, current = cohort.world.deadline_s, cohort.round
    if current is not None and current.phase is Phase.REDUCE and event.at - current.since > deadline:
        return cohort, (Abort("failed", f"averaging the snapshots of round {current.index} takes over {deadline} s"),)
    cohort, outputs = _lose_silent(cohort, event.at)
    return cohort, outputs or _end_stuck(cohort, event.at)


def _lose_silent(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Output, ...]]:
    """Give up the silent ranks. The others get their time to notice it before their collective counts as stuck."""
    deadline, outputs = cohort.world.deadline_s, tuple[Output, ...]()
    if at - cohort.oldest <= deadline:
        return cohort, ()
    both = list(zip(cohort.ranks, cohort.last_heard, strict=True))
    seen = [heard.seen for state, heard in both if (state.alive and not state.finished) or state.coming]
    cohort = replace(cohort, oldest=min(seen, default=at))
    # Who is ordered something only because another is given up has owed nothing until now.
    owing = [rank for rank in range(len(both)) if cohort.owes(rank)]
    for rank in owing:
        state, heard = both[rank]
        quiet_s = at - heard.seen
        if cohort.owes(rank) and quiet_s > deadline * (1 if state.digest else START_UP):
            since = f", since a collective broke ({cohort.cause})" if rank in cohort.broken else ""
            cohort, more = lose(cohort, rank, at, f"silent for {quiet_s:.1f} s{since}")
            cohort, outputs = replace(cohort, moved=at), outputs + more
            if any(isinstance(output, Abort) for output in more):
                break
    return cohort, outputs


def _end_stuck(cohort: CoordinatorState, at: float) -> tuple[Output, ...]:
    """Abort the run if its collective is stuck."""
    current = cohort.round
    # While a rank sends its state, nobody exchanges gradients.
    meeting = bool(cohort.shares) if current is None else current.phase is Phase.COLLECTIVE
    # A checkpoint without the coordinator's part is of the average in flight: nobody writes it yet.
    writing = any(saving.waiting and saving.coordinator is not None for saving in cohort.savings)
    patience = (STUCK + WRITING * writing) * cohort.world.deadline_s
    closes = current.closes if current is not None else ()
    stuck = cohort.world.blocking and meeting and at - cohort.moved > patience
    if stuck and all(owed.epoch in closes for owed in cohort.evaluating):  # nothing after the round has begun
        return (Abort("failed", f"all ranks live, but a collective takes over {patience} s"),)
    return ()
