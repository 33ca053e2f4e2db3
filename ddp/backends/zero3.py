"""`zero3`: each rank keeps a part of parameters, gradients and optimizer state."""

from ddp.backends.zero1 import ZeroBackend
from ddp.sharding.zero3 import Zero3


class Backend(ZeroBackend):
    """A rank's side."""

    kind = Zero3
