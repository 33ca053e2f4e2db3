"""Loads training data. Knows nothing of ranks' processes or models.

`epoch_order` determines the order of samples, `source` and `dataset` provide them, `gather` makes batches, `augment` and
`draws` change them, `batch_loader` delivers them to a rank (`resident` or `streaming`, as `memory_budget` allows). `loader`
combines all of this for a user's own loop. Every random number is derived here, from (seed, epoch, sample or rank).
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
