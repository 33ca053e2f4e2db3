"""What a rank that was started again takes from another: the model that all share, and what goes with it.

Owns what is in the file that one writes and the others read. What of it a backend keeps is the backend's business.
"""

from __future__ import annotations

from pathlib import Path

from ddp.backends import passed_state
from ddp.backends.base import Backend
from ddp.core.events import Shared
from ddp.core.join_events import Joined
from ddp.engine.loop import TrainingLoop
from ddp.process.clock import now


def send(scratch: Path, round: int, loop: TrainingLoop, backend: Backend) -> Shared:
    """Write the state for ranks that join: of the optimizer as this rank has it now, and of the last average. Return what is
    reported of it: of a model that all step alike, too."""
    replica = loop.replica
    state = {"optimizer": replica.optimizer.state_dict(), "passes": replica.passes.capture()}
    counters = {"begun": loop.begun, "version": loop.version, "rates": replica.rates.capture()}
    passed_state.write(scratch, round, {**state, **counters, "backend": backend.state_dict()})
    model = replica.sketcher.model() if replica.gradient_sync is not None else ""
    return Shared(now(), loop.rank, round, model, replica.sketcher.optimizer(replica.optimizer))


def load_sent(scratch: Path, round: int, loop: TrainingLoop, backend: Backend) -> Joined:
    """Take that state; return what is reported of it. Epochs begin here as they did there, before the state comes: what
    callbacks make beside it, such as a schedule, is in no file. Raises OutOfResources."""
    began, replica = now(), loop.replica
    state = passed_state.read(scratch, round, loop.device, plain=False)
    for epoch in range(state["begun"] + 1):
        loop.begin(epoch, epoch * replica.samples)
    replica.state.gather()
    replica.optimizer.load_state_dict(state["optimizer"])
    replica.passes.restore(state["passes"])
    replica.rates.restore(state["rates"])
    backend.load_state_dict(state["backend"])
    loop.version = state["version"]
    loop.contribute(round)
    size = passed_state.place(scratch, round).stat().st_size
    seconds = loop.meter.add("copy", began, size=replica.state.bytes) - began
    model, optimizer = replica.sketcher.model(), replica.sketcher.optimizer(replica.optimizer)
    return Joined(now(), loop.rank, round, seconds, size, model, optimizer)
