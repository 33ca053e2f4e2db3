"""What feeds training: the order of samples, and sources that gather them. Knows nothing of ranks' processes or models.

Every random number of the project is derived here, from (seed, epoch, sample or rank).
"""

from ddp.data.augment import crop_and_flip
from ddp.data.dataset import MapSource, as_source
from ddp.data.draws import Draws
from ddp.data.order import derive, order
from ddp.data.source import TensorSource

__all__ = ["Draws", "MapSource", "TensorSource", "as_source", "crop_and_flip", "derive", "order"]
