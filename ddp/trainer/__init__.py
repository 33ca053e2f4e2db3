"""The interface for users: `Trainer`, the handle of a run, and what it tells. `docs/reference/trainer.md` is its manual.

Owns the way from a user's functions to a `Job`, and the life of a run in the background. Knows neither policies nor
backends beyond their names.
"""

from ddp.trainer.epochs import EpochMetrics
from ddp.trainer.handle import RunHandle
from ddp.trainer.state import CheckpointInfo, TrainedState
from ddp.trainer.trainer import Trainer

__all__ = ["CheckpointInfo", "EpochMetrics", "RunHandle", "TrainedState", "Trainer"]
