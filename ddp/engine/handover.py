"""Transfers the state of the cohort to a restarted rank: the model that all ranks share, and what belongs to it.

Owns the contents of the file that one rank writes and the joining ranks read. The backend decides what it stores of
itself."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from ddp.backends import passed_state
from ddp.backends.base import Backend, CollectiveAverage
from ddp.core.messages.commands import SendState
from ddp.core.messages.events import Shared
from ddp.core.messages.join_events import Joined
from ddp.engine.loop import TrainingLoop
from ddp.process.clock import now
from ddp.replica.evidence.state_watch import JOINING
from ddp.replica.memory.extra_state import any_extra_state, set_extra_state


def send(scratch: Path, order: SendState, loop: TrainingLoop, backend: Backend, since: float) -> Shared:
    """Write the state for joining ranks: this rank's optimizer state, and the backend's state (the last average); or
    what the backend writes for ranks that missed an average. Return the event to report, with a sketch of the model
    if that is the backend's state. `since`: when this began, on the clock of the records."""
    if not order.joins:
        cast(CollectiveAverage, backend).send_state(order.round)
        loop.meter.add("copy", since)
        return Shared(now(), loop.rank, order.round)
    replica = loop.replica
    state = {"optimizer": replica.optimizer.state_dict(), "passes": replica.passes.capture()}
    state["extra"] = any_extra_state(replica.model)
    shared = backend.state_dict()
    counters = {"begun": loop.begun, "version": loop.version, "rates": replica.rates.capture()}
    counters["averaged"] = loop.begun if "tensors" in shared else loop.begun_at_average
    passed_state.write(scratch, order.round, {**state, **counters, "backend": shared})
    model = replica.sketcher.model() if "tensors" in shared else ""
    optimizer = replica.sketcher.optimizer(replica.optimizer)
    loop.meter.add("copy", since)
    return Shared(now(), loop.rank, order.round, model, optimizer)


def load_sent(scratch: Path, round: int, loop: TrainingLoop, backend: Backend) -> Joined:
    """Load that state; return the event to report. Also call the epoch callbacks for the epochs begun so far, as what these
    create (such as a schedule) is not in the file: before the model is loaded if it has their effects, else after.
    Raises OutOfResources."""
    began, replica = now(), loop.replica
    state = passed_state.read(scratch, round, loop.device, plain=False)
    _begin(loop, state["averaged"])
    replica.optimizer.load_state_dict(state["optimizer"])
    backend.load_state_dict(state["backend"])
    model, optimizer = replica.sketcher.model(), replica.sketcher.optimizer(replica.optimizer)
    _begin(loop, state["begun"])
    replica.passes.restore(state["passes"])
    set_extra_state(replica.model, state["extra"])
    replica.rates.restore(state["rates"])
    loop.version = state["version"]
    loop.contribute(round)
    loop.begun_at_average = state["averaged"]
    size = passed_state.place(scratch, round).stat().st_size
    seconds = loop.meter.add("copy", began, size=replica.state.bytes) - began
    if loop.keeper is not None:
        loop.keeper.watch.rests(f"{JOINING}{round}", loop.version)
    return Joined(now(), loop.rank, round, seconds, size, model, optimizer)


def _begin(loop: TrainingLoop, last: int) -> None:
    """Call the epoch callbacks up to epoch `last`, and keep the buffers that they replace."""
    for epoch in range(last + 1):
        loop.begin(epoch, epoch * loop.replica.samples)
    loop.replica.state.gather()
