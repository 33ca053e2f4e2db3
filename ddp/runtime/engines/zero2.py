"""`zero2`: synchronous training in which each rank keeps optimizer state and gradients of a part of the parameters."""

from __future__ import annotations

from ddp.runtime.engines import zero1
from ddp.runtime.engines.together import FACTS, Reducer, runner
from ddp.runtime.sharding.zero2 import Zero2

__all__ = ["FACTS", "Backend", "Reducer", "run"]
run = runner("zero2")


class Backend(zero1.Backend):
    """A rank's side."""

    kind = Zero2
