"""How ranks join, at the start and after a loss: a lost rank is restarted, loads the state of another between two rounds,
and is granted work.

Where gradients are averaged in steps there is no "between two rounds": all ranks leave their group first, as after a loss.
Owns when a rank is restarted and when it joins. Backends send and load the state."""

from __future__ import annotations

import dataclasses

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Abort, Command, Drop, Leave, Restart
from ddp.core.messages.events import Event, Failed, Lost, Ready
from ddp.core.messages.join_events import Joined, Joining, Left
from ddp.core.rounds.round_actions import Output, Reaction
from ddp.core.rounds.rounds import react
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.rank_state import Coming
from ddp.core.values.frozen import replace

TRIES = 3
"""After so many consecutive starts without joining, a rank is given up, whatever the settings."""


OFFERED = "a process is offered for it"


def ready(cohort: CoordinatorState, event: Ready) -> Reaction:
    """Record that a rank is ready at the start of the run. Aborts the run if ranks differ. Raise ProtocolError for a
    second report."""
    state = cohort.ranks[event.rank]
    if state.digest:
        raise ProtocolError(f"rank {event.rank} reports ready twice")
    if cohort.digest and cohort.digest != event.digest:
        other = next(known.rank for known in cohort.ranks if known.digest)
        reason = f"ranks {other} and {event.rank} begin with different parameters; build the model from the seed alone"
        return cohort, (Abort("failed", reason),)
    cohort = replace(cohort, digest=event.digest)
    if not cohort.world.samples:
        cohort = replace(cohort, world=dataclasses.replace(cohort.world, samples=event.samples))
    if event.least > cohort.world.least:
        cohort = replace(cohort, world=dataclasses.replace(cohort.world, least=event.least))
    if any(ledger.samples != event.samples for ledger in cohort.ledgers):
        reason = f"the checkpoint is of {cohort.ledgers[0].samples} training samples, there are {event.samples} now"
        return cohort, (Abort("failed", reason),)
    if event.samples != cohort.world.samples:
        reason = f"rank {event.rank} sees {event.samples} training samples, {cohort.world.samples} were expected"
        return cohort, (Abort("failed", reason),)
    return cohort.with_rank(event.rank, replace(state, digest=event.digest)), ()


def restart(cohort: CoordinatorState, rank: int, at: float) -> tuple[CoordinatorState, tuple[Restart, ...]]:
    """Order a lost rank to be restarted, if the settings allow it and something is left to train."""
    state, most = cohort.ranks[rank], cohort.world.restarts  # a process that was offered is none of these
    tired = state.failures == TRIES or (most is not None and state.life - state.offered >= most)
    if tired or cohort.stopping or not has_work(cohort):
        return cohort, ()
    reason = f"start {state.failures + 1} of {TRIES} at most until it is back"
    return _start(cohort, rank, at, reason, state.failures + 1)


def _start(
    cohort: CoordinatorState, rank: int, at: float, reason: str, failures: int
) -> tuple[CoordinatorState, tuple[Restart, ...]]:
    state = cohort.ranks[rank]
    life, offered = state.life + 1, state.offered + (reason == OFFERED)
    state = replace(state, coming=Coming.STARTING, life=life, offered=offered, failures=failures, digest="")
    return cohort.with_rank(rank, state).seen((rank,), at), (Restart(rank, life, reason),)


def accept(cohort: CoordinatorState, at: float) -> tuple[CoordinatorState, tuple[Restart, ...]]:
    """Order absent or lost ranks to be started in the offered processes."""
    orders: tuple[Restart, ...] = ()
    if not cohort.offers or len(cohort.live) == cohort.world.size or not has_work(cohort):
        return cohort, ()
    for rank, state in enumerate(cohort.ranks):
        if cohort.offers and not state.alive and not state.coming:
            cohort, starts = _start(cohort, rank, at, OFFERED, 0)
            cohort, orders = replace(cohort, offers=cohort.offers - 1), (*orders, *starts)
    return cohort, orders


def has_work(cohort: CoordinatorState) -> bool:
    """Return whether an epoch is incomplete."""
    return bool(cohort.ledgers) or cohort.begun < cohort.world.epochs


def hear(cohort: CoordinatorState, event: Event) -> Reaction:
    """Process an event of a rank that is on its way back. Raises ProtocolError for one that does not fit."""
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
    """Continue without a rank that was lost again before it joined; restart it if the settings allow it."""
    cohort = cohort.with_rank(rank, replace(cohort.ranks[rank], coming=Coming.NOT))
    cohort = replace(cohort, joiners=cohort.joiners.remove(rank))
    outputs: tuple[Output, ...] = ()
    if cohort.round is not None and rank in cohort.round.joining:
        cohort, outputs = react(cohort, Lost(at, rank, reason))
    cohort, starts = restart(cohort, rank, at)
    return cohort, (Drop(rank, reason), *starts, *outputs)


def due(cohort: CoordinatorState) -> tuple[int, ...]:
    """Return the ranks that must load the others' state now: those that are ready, if some rank has that state.

    Where ranks average in a collective, the result of the last one is lost once another has broken."""
    if not cohort.joiners or cohort.round is not None or not has_work(cohort):
        return ()
    if cohort.shares:  # all ranks wait once their group is broken
        return tuple(cohort.joiners) if cohort.broken else ()
    return () if cohort.broken or cohort.undone else tuple(cohort.joiners)


def part(cohort: CoordinatorState) -> tuple[CoordinatorState, tuple[Command, ...]]:
    """Order ranks that exchange gradients to leave their group, once per group, because others wait to join."""
    waits = cohort.joiners and cohort.shares and not cohort.broken and cohort.round is None
    generation = cohort.generation
    if not waits or cohort.parted == generation:
        return cohort, ()
    reason = f"rank {next(iter(cohort.joiners))} is back"
    return replace(cohort, parted=generation), tuple(Leave(rank, generation, reason) for rank in cohort.live)


def leave(cohort: CoordinatorState, event: Left) -> CoordinatorState:
    """Record that a rank has left its group. Raises ProtocolError if it did other steps than it reported."""
    if event.generation != cohort.generation:
        return cohort  # a new group was formed since
    state = cohort.ranks[event.rank]
    if event.steps != (state.steps if state.queue else None):
        raise ProtocolError(f"rank {event.rank} did {event.steps} steps, {state.steps} were reported: {event}")
    return replace(cohort, broken=cohort.broken.add(event.rank))
