"""`zero3`: synchronous training in which each rank keeps a part of optimizer state, gradients and parameters."""

from ddp.backends.zero1 import ZeroBackend
from ddp.sharding.zero3 import Zero3


class Backend(ZeroBackend):
    """A rank's side."""

    kind = Zero3
