"""`zero2`: synchronous training in which each rank keeps optimizer state and gradients of a part of the parameters."""

from __future__ import annotations

from ddp.backends import zero1
from ddp.backends.step_backend import FACTS, Reducer, runner
from ddp.sharding.zero2 import Zero2

__all__ = ["FACTS", "Backend", "Reducer", "run"]
run = runner("zero2")


class Backend(zero1.Backend):
    """A rank's side."""

    kind = Zero2
