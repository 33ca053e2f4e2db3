"""The training engine: data-parallel training on devices of equal or unequal speed.

    from ddp import Trainer

    state = Trainer(model_factory, optimizer_factory, train_step, dataset, batch_size=32, epochs=10).run().join()

`ddp.core` decides (pure), `ddp.runtime` obeys (processes, clocks, collectives), `ddp.sim` plays the same core in
virtual time, `ddp.graph` builds models, `ddp.data` feeds them, `ddp.trainer` is the interface for users, `ddp.parallel` one
for loops of their own (`DistributedDataParallel`, `wrap`). Importing `ddp` itself imports none of them: its names are looked
up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp.core.errors import Aborted, Diverged, EngineError, RankFailed, RankLost
    from ddp.parallel import DistributedDataParallel, Group, Replicas, get_rank, get_world_size, init, wrap
    from ddp.runtime.handle import WorkerHandle
    from ddp.runtime.scalars import record_scalar
    from ddp.trainer import CheckpointInfo, EpochMetrics, RunHandle, TrainedState, Trainer

__all__ = [
    "Aborted",
    "CheckpointInfo",
    "DistributedDataParallel",
    "Diverged",
    "EngineError",
    "EpochMetrics",
    "Group",
    "RankFailed",
    "RankLost",
    "Replicas",
    "RunHandle",
    "TrainedState",
    "Trainer",
    "WorkerHandle",
    "get_rank",
    "get_world_size",
    "init",
    "record_scalar",
    "wrap",
]

_HOME = {
    **dict.fromkeys(("Aborted", "Diverged", "EngineError", "RankFailed", "RankLost"), "ddp.core.errors"),
    **dict.fromkeys(("CheckpointInfo", "EpochMetrics", "RunHandle", "TrainedState", "Trainer"), "ddp.trainer"),
    **dict.fromkeys(
        ("DistributedDataParallel", "Group", "Replicas", "get_rank", "get_world_size", "init", "wrap"), "ddp.parallel"
    ),
    "WorkerHandle": "ddp.runtime.handle",
    "record_scalar": "ddp.runtime.scalars",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ddp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
