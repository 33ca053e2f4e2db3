"""What a rank that was started again takes from another: the model that all share, and what goes with it.

Owns the file that one writes and the others read. What of it a backend keeps is the backend's business.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ddp.backends.base import Backend
from ddp.core.events import Shared
from ddp.core.join_events import Joined
from ddp.engine.loop import TrainingLoop
from ddp.process.clock import now


def _file(scratch: Path, round: int) -> Path:
    return scratch / f"shared-{round}.pt"


def send(scratch: Path, round: int, loop: TrainingLoop, backend: Backend) -> Shared:
    """Write the state for ranks that join: of the optimizer as this rank has it now, and of the last average. Return what is
    reported of it: of a model that all step alike, too."""
    replica = loop.replica
    state = {"optimizer": replica.optimizer.state_dict(), "passes": replica.passes.capture()}
    counters = {"version": loop.version, "rates": replica.rates.capture()}
    torch.save({**state, **counters, "backend": backend.state_dict()}, _file(scratch, round))
    model = replica.sketcher.model() if replica.in_step is not None else ""
    return Shared(now(), loop.rank, round, model, replica.sketcher.optimizer(replica.optimizer))


def load_sent(scratch: Path, round: int, loop: TrainingLoop, backend: Backend) -> Joined:
    """Take that state; return what is reported of it."""
    began, replica, path = now(), loop.replica, _file(scratch, round)
    state = torch.load(path, map_location=loop.device, weights_only=False)  # of a rank of this very run
    replica.state.gather()
    replica.optimizer.load_state_dict(state["optimizer"])
    replica.passes.restore(state["passes"])
    replica.rates.restore(state["rates"])
    backend.load_state_dict(state["backend"])
    loop.version = state["version"]
    loop.contribute(round)
    seconds = loop.meter.add("copy", began, size=replica.state.bytes) - began
    model, optimizer = replica.sketcher.model(), replica.sketcher.optimizer(replica.optimizer)
    return Joined(now(), loop.rank, round, seconds, path.stat().st_size, model, optimizer)
