"""Validates a coordinator's checkpoint: whether its numbers are possible, and whether the policy can continue from its
state.

Data from a disk is trusted only after these checks. Knows neither files nor processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec

from ddp.core.messages.commands import CoordinatorCheckpoint, Plan
from ddp.core.messages.events import RoundClosed
from ddp.core.policies import Policy
from ddp.core.samples.ledger import Ledger
from ddp.core.settings.world import World

MOST = 2**40
"""Upper limit of counts of samples, steps and averages."""
TRIAL = 8
"""Number of windows for which the policy is tried with the state: enough for a guard to act."""


def contradiction(saved: CoordinatorCheckpoint, size: int, epochs: int, index: int) -> str:
    """Describe the first impossible number in checkpoint `index` of a run of `size` ranks; empty if there is none."""
    checks = (
        (0 < saved.epoch_samples <= MOST, f"{saved.epoch_samples} samples in an epoch"),
        (0 <= index < saved.saves <= MOST, f"checkpoint {index} of {saved.saves}"),
        (0 <= saved.rounds <= MOST, f"{saved.rounds} averages"),
        (len(saved.ledgers) <= saved.begun <= epochs, f"{saved.begun} of {epochs} epochs begun"),
        (_ascending(saved), "epochs that are begun and not complete"),
        (all(_possible_ledger(ledger, saved, size) for ledger in saved.ledgers), "which samples are trained"),
        (saved.plan is not None or saved.policy_state is None, "a policy's state without its plan"),
    )
    return next((what for sound, what in checks if not sound), "")


def _ascending(saved: CoordinatorCheckpoint) -> bool:
    epochs = [-1, *(ledger.epoch for ledger in saved.ledgers), saved.begun]
    return all(before < after for before, after in pairwise(epochs))


def _possible_ledger(ledger: Ledger, saved: CoordinatorCheckpoint, size: int) -> bool:
    edges = [edge for span in ledger.merged for edge in span]
    ascending = all(before < after for before, after in pairwise(edges))
    within = all(0 <= edge <= ledger.samples for edge in edges) and ledger.samples == saved.epoch_samples
    return ascending and within and len(ledger.pools) in (0, 1, size) and ledger == ledger.reopen()


def revived(saved: CoordinatorCheckpoint, policy: Policy, world: World) -> CoordinatorCheckpoint:
    """Return the checkpoint with the policy's state converted to its type. Raises ValueError if `policy` cannot continue
    from it."""
    if saved.plan is None:
        return saved
    begin, plan = policy.init(world)
    try:
        state = _like(begin, saved.policy_state)
        _finite(msgspec.to_builtins(state))
        _live(policy, state, saved.plan, plan)
    except Exception as error:  # the policy's code may raise anything for invalid data
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"its policy cannot go on with what is in it ({reason}); go on with the settings of before, or begin anew"
        ) from error
    return replace(saved, policy_state=state)


def _like(begin: Any, state: Any) -> Any:
    """Convert `state` to the type of `begin`, also in fields that are declared as Any."""
    made = None if begin is None else msgspec.convert(state, type(begin))
    if begin is None or not is_dataclass(made):
        return made
    free = [field.name for field in fields(made) if field.type in (Any, "Any")]
    return replace(made, **{name: _like(getattr(begin, name), getattr(made, name)) for name in free})  # type: ignore[type-var]


def _finite(value: Any) -> None:
    """Raise ValueError for a number that is not finite or too large."""
    if isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= MOST):
        raise ValueError(f"{value} is not possible")
    children: Iterable[Any] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    )
    for child in children:
        _finite(child)


def _live(policy: Policy, state: Any, plan: Plan, begin: Plan) -> None:
    """Update the policy with some windows of increasing divergence, and check its plans."""
    _check_plan(plan, begin)
    for number in range(1, TRIAL + 1):
        event = RoundClosed(
            at=float(number), round=number, steps=plan.counts, busy_s=tuple(0.01 * n for n in plan.counts), sync_s=0.001,
            wait_s=(0.0,) * len(plan.counts), divergence=(0.1 * number,) * len(plan.counts),
            starved=(True,) * len(plan.counts),
        )  # fmt: skip
        state, records = policy.update(state, event)
        for record in records:
            if isinstance(record, Plan):
                _check_plan(plan := record, begin)


def _check_plan(plan: Plan, begin: Plan) -> None:
    """Raise ValueError for a plan that is impossible for a policy whose first plan is `begin`."""
    ranks = len(begin.counts)
    sound = len(plan.counts) == len(plan.ahead) == ranks and len(plan.weights) in (0, ranks)
    sound &= all(0 < n <= MOST for n in (*plan.counts, plan.anchor)) and all(0 <= n <= MOST for n in plan.ahead)
    sound &= all(math.isfinite(weight) and weight > 0 for weight in plan.weights)
    for name in ("overlap", "lookahead", "in_step", "max_lead", "dispatch"):
        sound &= getattr(plan, name) == getattr(begin, name)
    if not sound:
        raise ValueError("its plan is none of this policy's, with these settings, for so many ranks")
