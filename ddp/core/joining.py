"""How ranks come, at the start and back: a lost one is started again, takes the state of another between two rounds, and is
granted work.

Inside steps nobody stands between two rounds, so all leave their group first, as they do where one is lost. Owns when a
rank is started again and when it is let in. What is sent and loaded is the backends' business.
"""

from __future__ import annotations

from ddp.core.commands import Abort, Command, Drop, Leave, Restart
from ddp.core.coordinator_state import CoordinatorState
from ddp.core.errors import ProtocolError
from ddp.core.events import Event, Failed, Lost, Ready
from ddp.core.join_events import Joined, Joining, Left
from ddp.core.rank_state import Coming
from ddp.core.round_actions import Output, Reaction
from ddp.core.rounds import react
from ddp.core.values import replace

TRIES = 3
"""A rank that was started so often in a row and did not come back is given up, whatever the settings."""


OFFERED = "a process is offered for it"


def ready(cohort: CoordinatorState, event: Ready) -> Reaction:
    """Enter that a rank is there at the start of the run. Ends the run where ranks differ."""
    state = cohort.ranks[event.rank]
    if state.digest:
        raise ProtocolError(f"rank {event.rank} reports ready twice")
    if cohort.digest and cohort.digest != event.digest:
        other = next(known.rank for known in cohort.ranks if known.digest)
        reason = f"ranks {other} and {event.rank} begin with different parameters; build the model from the seed alone"
        return cohort, (Abort("failed", reason),)
    cohort = replace(cohort, digest=event.digest)
    if not cohort.world.samples:
        cohort = replace(cohort, world=replace(cohort.world, samples=event.samples))
    if event.least > cohort.world.least:
        cohort = replace(cohort, world=replace(cohort.world, least=event.least))
    if any(ledger.samples != event.samples for ledger in cohort.ledgers):
        reason = f"the checkpoint is of {cohort.ledgers[0].samples} training samples, there are {event.samples} now"
        return cohort, (Abort("failed", reason),)
    if event.samples != cohort.world.samples:
        reason = f"rank {event.rank} sees {event.samples} training samples, {cohort.world.samples} were expected"
        return cohort, (Abort("failed", reason),)
    return cohort.with_rank(event.rank, replace(state, digest=event.digest)), ()


def restart(cohort: CoordinatorState, rank: int, at: float) -> tuple[CoordinatorState, tuple[Restart, ...]]:
    """Order a lost rank to be started again, if it may be and there is something left to train."""
    state, most = cohort.ranks[rank], cohort.world.restarts
    tired = state.failures == TRIES or (most is not None and state.life >= most)
    if tired or cohort.stopping or not has_work(cohort):
        return cohort, ()
    reason = f"start {state.failures + 1} of {TRIES} at most until it is back"
    return _start(cohort, rank, at, reason, state.failures + 1)


def _start(
    cohort: CoordinatorState, rank: int, at: float, reason: str, failures: int
) -> tuple[CoordinatorState, tuple[Restart, ...]]:
    state = cohort.ranks[rank]
    life = state.life + 1
    state = replace(state, coming=Coming.STARTING, life=life, failures=failures, digest="")
    return cohort.with_rank(rank, state).seen((rank,), at), (Restart(rank, life, reason),)


def accept(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Restart, ...]]:
    """Order ranks that are not there, and not on their way, to be started in the processes that are offered."""
    orders: tuple[Restart, ...] = ()
    if not cohort.offers or len(cohort.live) == cohort.world.size or not has_work(cohort):
        return cohort, ()
    for rank, state in enumerate(cohort.ranks):
        if cohort.offers and not state.alive and not state.coming:
            cohort, starts = _start(cohort, rank, at, OFFERED, 0)
            cohort, orders = replace(cohort, offers=cohort.offers - 1), (*orders, *starts)
    return cohort, orders


def has_work(cohort: CoordinatorState) -> bool:
    """Return whether any epoch is incomplete."""
    return bool(cohort.ledgers) or cohort.begun < cohort.world.epochs


def hear(cohort: CoordinatorState, event: Event) -> Reaction:
    """Enter what a rank says that is on its way back. Raises ProtocolError for what is not its to say."""
    match event:
        case Joining():
            return _arrive(cohort, event), ()
        case Joined():
            return react(cohort, event)
        case Failed():
            return give_up(cohort, event.rank, event.at, event.error)
        case Lost():
            return give_up(cohort, event.rank, event.at, event.reason)
    return cohort, ()


def _arrive(cohort: CoordinatorState, event: Joining) -> CoordinatorState:
    state = cohort.ranks[event.rank]
    if (state.coming, state.life) != (Coming.STARTING, event.life):
        raise ProtocolError(f"rank {event.rank} was not awaited: {event}")
    if (event.digest, event.samples) != (cohort.digest, cohort.world.samples):
        raise ProtocolError(f"rank {event.rank} comes back with another model or other data: {event}")
    cohort = cohort.with_rank(event.rank, replace(state, coming=Coming.READY, digest=event.digest))
    return replace(cohort, joiners=cohort.joiners.add(event.rank))


def give_up(cohort: CoordinatorState, rank: int, at: float, reason: str) -> Reaction:
    """Go on without a rank that was lost again before it was back, and start it once more if it may be."""
    cohort = cohort.with_rank(rank, replace(cohort.ranks[rank], coming=Coming.NOT))
    cohort = replace(cohort, joiners=cohort.joiners.remove(rank))
    outputs: tuple[Output, ...] = ()
    if cohort.round is not None and rank in cohort.round.joining:
        cohort, outputs = react(cohort, Lost(at, rank, reason))
    cohort, starts = restart(cohort, rank, at)
    return cohort, (Drop(rank, reason), *starts, *outputs)


def due(cohort: CoordinatorState) -> tuple[int, ...]:
    """Return the ranks that are to take the others' state now: those that are there, if somebody has that state.

    Where ranks average in a collective, what came out of the last one is no more once another has broken.
    """
    if not cohort.joiners or cohort.round is not None or not has_work(cohort):
        return ()
    if cohort.shares:  # all stand still once their group is broken
        return tuple(cohort.joiners) if cohort.broken else ()
    return () if cohort.broken or cohort.undone else tuple(cohort.joiners)


def part(cohort: CoordinatorState) -> tuple[CoordinatorState, tuple[Command, ...]]:
    """Order ranks that exchange gradients to leave their group, once, where others wait to get in."""
    waits = cohort.joiners and cohort.shares and not cohort.broken and cohort.round is None
    generation = cohort.generation
    if not waits or cohort.parted == generation:
        return cohort, ()
    reason = f"rank {next(iter(cohort.joiners))} is back"
    return replace(cohort, parted=generation), tuple(Leave(rank, generation, reason) for rank in cohort.live)


def leave(cohort: CoordinatorState, event: Left) -> CoordinatorState:
    """Enter that a rank has left its group. Raises ProtocolError if it has done other steps than it reported."""
    if event.generation != cohort.generation:
        return cohort  # all have met anew since
    if event.steps not in (None, reported := cohort.ranks[event.rank].steps):
        raise ProtocolError(f"rank {event.rank} did {event.steps} steps, {reported} were reported: {event}")
    return replace(cohort, broken=cohort.broken.add(event.rank))
