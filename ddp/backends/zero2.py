"""`zero2`: each rank keeps the gradients and optimizer state of a part of the parameters."""

from ddp.backends.zero1 import ZeroBackend
from ddp.sharding.zero2 import Zero2


class Backend(ZeroBackend):
    """A rank's side."""

    kind = Zero2
