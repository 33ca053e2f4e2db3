"""Counts the steps of a run by its own counters: norms over the batch count every pass in training mode.

So passes in another mode show, which are too seldom for one of them to be kept, and passes that nobody asked for. Must not
use the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from bench.audit.kept import BUFFERS, KeptStep, Parts
from bench.audit.order import AuditOrder
from bench.results.audit_file import AuditItem
from ddp.core.step_settings import PLAIN

COUNTER = "num_batches_tracked"
"""Buffer of a norm of PyTorch that counts its passes."""


def counted(order: AuditOrder, steps: Sequence[KeptStep]) -> Iterator[AuditItem]:
    """Compare counters before the kept steps of the first rank. All must have counted as many passes for a step.

    Of runs that went as planned, in which no average sets them and no step is of several batches."""
    own = sorted((each for each in steps if each.rank == 0), key=lambda each: each.step)
    together = order.world_size == 1 or all(each.together for each in own)
    if (
        len(own) < 2
        or not (together and order.planned and order.step == PLAIN)
        or (order.one_process and order.world_size > 1)
    ):
        return
    passes = {name: {_moved(each, name) for each in own} for name in _counters(own[0].before)}
    for name, known in passes.items():
        if len(known) != 1 or None in known:
            continue  # steps of several kinds, as of a norm that is frozen on the way
        (each_step,) = known
        yield _item(own, name, float(each_step or 0.0))


def _item(own: Sequence[KeptStep], name: str, passes: float) -> AuditItem:
    for first, then in pairwise(own):
        before, after = _counters(first.before)[name], _counters(then.before).get(name)
        between, wanted = then.step - first.step, passes * (then.step - first.step)
        if after is not None and after - before != wanted:
            line = f"{name} counted {after - before:g} passes in {between} steps up to this one, {wanted:g} are due"
            place: dict[str, Any] = {
                "rank": 0,
                "epoch": then.epoch,
                "step": then.step,
                "files": [first.file, then.file],
            }
            return AuditItem(what="chain", outcome="different", line=line, **place)
    return AuditItem(what="chain", outcome="equal", rank=0)


def _counters(state: Parts) -> dict[str, float]:
    """Return the counters in a state by name."""
    return {
        name.name: float(parts[0].values.reshape(-1)[0])
        for name, parts in state.items()
        if name.kind == BUFFERS and name.name.endswith(COUNTER) and parts[0].values is not None
    }


def _moved(step: KeptStep, name: str) -> float | None:
    """Return by how much a counter moved in each of the steps; None: not known."""
    before, after = _counters(step.before).get(name), _counters(step.after).get(name)
    return None if before is None or after is None else (after - before) / len(step.row)
