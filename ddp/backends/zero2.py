"""`zero2`: synchronous training in which each rank keeps optimizer state and gradients of a part of the parameters."""

from ddp.backends.zero1 import ZeroBackend
from ddp.sharding.zero2 import Zero2


class Backend(ZeroBackend):
    """A rank's side."""

    kind = Zero2
