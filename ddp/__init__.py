"""The training engine: data-parallel training on devices of equal or unequal speed.

    from ddp import Trainer

    state = Trainer(model_factory, optimizer_factory, train_step, dataset, batch_size=32, epochs=10).run().join()

In one process with your own training loop, use `ddp.setup(graph, builder, optimizer_factory)`.

`ddp.core` decides (pure), `ddp.engine` executes (processes, clocks, collectives), `ddp.sim` simulates the same core in
virtual time. `ddp.data` loads data. `ddp.trainer` is the interface for users. `ddp.parallel` (`DistributedDataParallel`,
`wrap`) and `ddp.graph` (one process) are for your own training loops. `import ddp` imports none of these modules: each name
is imported when it is first used.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp.core.errors import Aborted, Diverged, EngineError, RankFailed, RankLost
    from ddp.data import DataLoader, Draws, crop_and_flip
    from ddp.graph import (
        DdpConfig,
        FlowBuilder,
        Graph,
        GraphError,
        is_heterogeneous,
        setup,
        setup_with,
    )
    from ddp.monitor import Monitor, Timeline
    from ddp.parallel import (
        DistributedDataParallel,
        Group,
        Replicas,
        RoundRobinSampler,
        get_local_rank,
        get_rank,
        get_world_size,
        init,
        wrap,
    )
    from ddp.replica.handle import WorkerHandle
    from ddp.replica.optim.lr_schedule import LRSchedule
    from ddp.replica.scalars import record_scalar
    from ddp.trainer import CheckpointInfo, EpochMetrics, RunHandle, TrainedState, Trainer

STARTED_IN = ""
"""Working folder when this was imported; empty: it was removed. A script may change to another later."""
with suppress(FileNotFoundError):
    STARTED_IN = os.getcwd()

__all__ = [
    "Aborted",
    "CheckpointInfo",
    "DataLoader",
    "DdpConfig",
    "DistributedDataParallel",
    "Diverged",
    "Draws",
    "EngineError",
    "EpochMetrics",
    "FlowBuilder",
    "Graph",
    "GraphError",
    "Group",
    "LRSchedule",
    "Monitor",
    "RankFailed",
    "RankLost",
    "Replicas",
    "RoundRobinSampler",
    "RunHandle",
    "Timeline",
    "TrainedState",
    "Trainer",
    "WorkerHandle",
    "crop_and_flip",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "init",
    "is_heterogeneous",
    "record_scalar",
    "setup",
    "setup_with",
    "wrap",
]

_HOME = {
    **dict.fromkeys(("Aborted", "Diverged", "EngineError", "RankFailed", "RankLost"), "ddp.core.errors"),
    **dict.fromkeys(("CheckpointInfo", "EpochMetrics", "RunHandle", "TrainedState", "Trainer"), "ddp.trainer"),
    **dict.fromkeys(("DdpConfig", "FlowBuilder", "Graph", "GraphError"), "ddp.graph"),
    **dict.fromkeys(("DataLoader", "Draws", "crop_and_flip"), "ddp.data"),
    **dict.fromkeys(("is_heterogeneous", "setup", "setup_with"), "ddp.graph"),
    **dict.fromkeys(
        (
            "DistributedDataParallel",
            "Group",
            "Replicas",
            "RoundRobinSampler",
            "get_local_rank",
            "get_rank",
            "get_world_size",
            "init",
            "wrap",
        ),
        "ddp.parallel",
    ),
    **dict.fromkeys(("Monitor", "Timeline"), "ddp.monitor"),
    "WorkerHandle": "ddp.replica.handle",
    "LRSchedule": "ddp.replica.optim.lr_schedule",
    "record_scalar": "ddp.replica.scalars",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ddp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
