"""Whether the books of a checkpoint can be what they claim, and a policy's state as its own type again.

What is read from a disk is believed once it has been checked here: everything that a run goes on with must be possible, and
the policy must be able to live with its state. Knows neither files nor processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec

from ddp.core.commands import CoordinatorCheckpoint, Plan
from ddp.core.events import RoundClosed
from ddp.core.ledger import Ledger
from ddp.core.policies import Policy
from ddp.core.world import World

MOST = 2**40
"""No count of samples, steps or averages is larger."""
TRIAL = 8
"""Windows that a policy must be able to take in from its state: enough for a guard to nudge."""


def contradiction(books: CoordinatorCheckpoint, size: int, epochs: int, index: int) -> str:
    """What in the books of checkpoint `index` of a run of `size` ranks cannot be; empty if nothing is found."""
    complaints = (
        (0 < books.epoch_samples <= MOST, f"{books.epoch_samples} samples in an epoch"),
        (0 <= index < books.saves <= MOST, f"checkpoint {index} of {books.saves}"),
        (0 <= books.rounds <= MOST, f"{books.rounds} averages"),
        (len(books.ledgers) <= books.begun <= epochs, f"{books.begun} of {epochs} epochs begun"),
        (_ascending(books), "epochs that are begun and not complete"),
        (all(_possible_ledger(ledger, books, size) for ledger in books.ledgers), "which samples are trained"),
        (books.plan is not None or books.policy_state is None, "a policy's state without its plan"),
    )
    return next((what for sound, what in complaints if not sound), "")


def _ascending(books: CoordinatorCheckpoint) -> bool:
    epochs = [-1, *(ledger.epoch for ledger in books.ledgers), books.begun]
    return all(before < after for before, after in pairwise(epochs))


def _possible_ledger(ledger: Ledger, books: CoordinatorCheckpoint, size: int) -> bool:
    edges = [edge for span in ledger.merged for edge in span]
    ascending = all(before < after for before, after in pairwise(edges))
    within = all(0 <= edge <= ledger.samples for edge in edges) and ledger.samples == books.epoch_samples
    return ascending and within and len(ledger.pools) in (0, 1, size) and ledger == ledger.reopen()


def revived(books: CoordinatorCheckpoint, policy: Policy, world: World) -> CoordinatorCheckpoint:
    """The books with the policy's state as its own type. ValueError if it is none that `policy` can go on with."""
    if books.plan is None:
        return books
    begin, plan = policy.init(world)
    try:
        state = _like(begin, books.policy_state)
        _finite(msgspec.to_builtins(state))
        _live(policy, state, books.plan, plan)
    except Exception as error:  # the policy's own code, on whatever was in the file
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"its policy cannot go on with what is in it ({said}); go on with the settings of before, or begin anew"
        ) from error
    return replace(books, policy_state=state)


def _like(begin: Any, held: Any) -> Any:
    """`held` as the type that `begin` has, also where a field is declared as anything."""
    made = None if begin is None else msgspec.convert(held, type(begin))
    if begin is None or not is_dataclass(made):
        return made
    free = [field.name for field in fields(made) if field.type in (Any, "Any")]
    return replace(made, **{name: _like(getattr(begin, name), getattr(made, name)) for name in free})  # type: ignore[type-var]


def _finite(value: Any) -> None:
    """Raise ValueError for a number that no policy can have."""
    if isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= MOST):
        raise ValueError(f"{value} is not possible")
    children: Iterable[Any] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    )
    for child in children:
        _finite(child)


def _live(policy: Policy, state: Any, plan: Plan, begin: Plan) -> None:
    """Let the policy take in some windows, ever worse ones, and look at what it plans."""
    _check_plan(plan, begin)
    for number in range(1, TRIAL + 1):
        event = RoundClosed(
            at=float(number), round=number, steps=plan.counts, busy_s=tuple(0.01 * n for n in plan.counts), sync_s=0.001,
            wait_s=(0.0,) * len(plan.counts), divergence=(0.1 * number,) * len(plan.counts),
            starved=(True,) * len(plan.counts),
        )  # fmt: skip
        state, said = policy.update(state, event)
        for record in said:
            if isinstance(record, Plan):
                _check_plan(plan := record, begin)


def _check_plan(plan: Plan, begin: Plan) -> None:
    """Raise ValueError for a plan that a policy which began with `begin` cannot have."""
    ranks = len(begin.counts)
    sound = len(plan.counts) == len(plan.ahead) == ranks and len(plan.weights) in (0, ranks)
    sound &= all(0 < n <= MOST for n in (*plan.counts, plan.anchor)) and all(0 <= n <= MOST for n in plan.ahead)
    sound &= all(math.isfinite(weight) and weight > 0 for weight in plan.weights)
    for name in ("overlap", "lookahead", "in_step", "max_lead", "dispatch"):
        sound &= getattr(plan, name) == getattr(begin, name)
    if not sound:
        raise ValueError("its plan is none of this policy's, with these settings, for so many ranks")
