"""What feeds training. Knows nothing of ranks' processes or models.

`epoch_order` says which samples come when, `source` and `dataset` where they come from, `gather` what a batch is,
`augment` and `draws` what becomes of it, `batch_loader` how a rank gets it: `resident` or `streaming`, as
`memory_budget` allows.
`loader` is all of it for a user's own loop. Every random number is derived here, from (seed, epoch, sample or rank).
"""

from ddp.data.augment import crop_and_flip
from ddp.data.dataset import MapSource, as_source
from ddp.data.draws import Draws
from ddp.data.epoch_order import order
from ddp.data.errors import BadSample, DataError, LateBatch
from ddp.data.loader import DataLoader
from ddp.data.source import TensorSource
from ddp.permutation import derive

__all__ = [
    "BadSample",
    "DataError",
    "DataLoader",
    "Draws",
    "LateBatch",
    "MapSource",
    "TensorSource",
    "as_source",
    "crop_and_flip",
    "derive",
    "order",
]
