"""Defines the interface for users: `Trainer`, the handle of a run, its metrics and its result.
`docs/reference/trainer.md` is the manual.

Owns the conversion of a user's functions and data into a `Job`, and the thread that runs the job in the background.
Knows policies and backends only by their names.
"""

from ddp.trainer.epochs import EpochMetrics
from ddp.trainer.handle import RunHandle
from ddp.trainer.state import CheckpointInfo, TrainedState
from ddp.trainer.trainer import Trainer

__all__ = ["CheckpointInfo", "EpochMetrics", "RunHandle", "TrainedState", "Trainer"]
