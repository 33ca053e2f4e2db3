"""Sketches of a rank's replica before and after the average, in the rounds that are drawn.

They are made here and not by the backend, whose result they check: the backend does not know which rounds are drawn."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from ddp.core.messages.commands import Average
from ddp.core.messages.event_parts import OptimizerSketch, Sketch
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.replica import Replica


@dataclass(frozen=True)
class ReplicaSketch:
    """Sketches of a replica and of its optimizer's state; empty in a round that was not drawn."""

    model: Sketch = ""
    optimizer: OptimizerSketch = ()


class RoundSketches:
    """Makes the sketches for the rounds of one rank."""

    def __init__(self, replica: Replica, meter: Meter) -> None:
        self._replica, self._meter = replica, meter
        self._round = -1
        """The last round, if it is sketched; else -1."""

    def begin(self, order: Average) -> Average:
        """Note whether this round is sketched; return the order for the backend, which does not say so."""
        self._round = order.round if order.sketched else -1
        return replace(order, sketched=False) if order.sketched else order

    def replica(self, round: int) -> ReplicaSketch:
        """Return the sketch of the present replica."""
        if round != self._round:
            return ReplicaSketch()
        began, replica = now(), self._replica
        replica.state.gather()
        sketch = ReplicaSketch(replica.sketcher.model(), replica.sketcher.optimizer(replica.optimizer))
        self._meter.add("copy", began)
        return sketch

    def average(self, replica: ReplicaSketch, averaged_weights: AbstractContextManager[None]) -> Sketch:
        """Return the sketch of the average that the backend gives. `replica`: the sketch of the replica after the round."""
        if not replica.model or isinstance(averaged_weights, nullcontext):
            return replica.model
        began = now()
        with averaged_weights:
            sketch = self._replica.sketcher.model()
        self._meter.add("copy", began)
        return sketch
