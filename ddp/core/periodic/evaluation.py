"""Evaluation: which rank measures which part of the test set after which epoch, and who takes over from lost ranks.

It uses the average of the round that completes an epoch, and is split over the ranks."""

from __future__ import annotations

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Evaluate
from ddp.core.messages.events import Evaluated
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.rank_state import Owed
from ddp.core.values.frozen import replace


def evaluate(
    cohort: CoordinatorState, epochs: tuple[int, ...], turn: bool = False
) -> tuple[CoordinatorState, tuple[Evaluate, ...]]:
    """Order the evaluation of the model at the end of `epochs`, with the test set split over the live ranks."""
    live = cohort.live
    owed = tuple(Owed(epoch, rank, part, len(live)) for epoch in epochs for part, rank in enumerate(live))
    return _owing(cohort, owed), orders(owed, turn)


def _owing(cohort: CoordinatorState, more: tuple[Owed, ...]) -> CoordinatorState:
    if not more:
        return cohort
    draft = cohort.draft()
    for owed in more:
        state = draft[owed.rank]
        draft.put(owed.rank, replace(state, owed=(*state.owed, owed)))
    return cohort.after(draft)


def orders(owed: tuple[Owed, ...], turn: bool = False) -> tuple[Evaluate, ...]:
    """Return the orders to evaluate the parts `owed`."""
    return tuple(Evaluate(o.rank, o.epoch, o.part, o.parts, turn, f"epoch {o.epoch} is complete") for o in owed)


def on_evaluated(cohort: CoordinatorState, event: Evaluated) -> CoordinatorState:
    """Record that a rank has evaluated its part. Raises ProtocolError if that was not ordered."""
    state = cohort.ranks[event.rank]
    left = tuple(owed for owed in state.owed if (owed.epoch, owed.part) != (event.epoch, event.part))
    if len(left) == len(state.owed):
        raise ProtocolError(f"{event} was not asked for; owed: {cohort.evaluating}")
    return cohort.with_rank(event.rank, replace(state, owed=left))


def adopt(cohort: CoordinatorState) -> tuple[CoordinatorState, tuple[Evaluate, ...]]:
    """Have a survivor evaluate, at the end of training, the parts of the final model that lost ranks owed.

    The model of an earlier epoch is gone: its evaluation stays incomplete."""
    last, rank = cohort.world.epochs - 1, cohort.live[0]
    owed = tuple(replace(o, rank=rank) for o in cohort.orphaned if o.epoch == last)
    return _owing(replace(cohort, orphaned=()), owed), orders(owed)
