"""`zero3`: synchronous training in which each rank keeps a part of optimizer state, gradients and parameters."""

from __future__ import annotations

from ddp.backends import zero1
from ddp.backends.step_backend import FACTS, Reducer, runner
from ddp.sharding.zero3 import Zero3

__all__ = ["FACTS", "Backend", "Reducer", "run"]
run = runner("zero3")


class Backend(zero1.Backend):
    """A rank's side."""

    kind = Zero3
