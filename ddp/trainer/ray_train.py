"""Ends a worker of Ray Train without an error. The worker's process outlives the training function, and any exception
of the function fails the whole run.

A worker that has served rank 0 must end its thread without a result that Ray Train takes for an error. Does not import
Ray: in a worker, Ray is imported already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from ddp.launcher.environment import RAY, Placement

CONTEXT = "ray.train.v2._internal.execution.context"
"""Module of Ray Train (2.43 and later) that holds the thread of the training function."""


def within(placement: Placement) -> bool:
    """Return whether Ray Train started this process. `launch=ray` sets DDP_LAUNCHER, and a user's own Ray actors
    have not imported `ray.train`."""
    return placement.launcher == RAY and not os.environ.get("DDP_LAUNCHER") and "ray.train" in sys.modules


def quiet_end() -> Callable[[], None]:
    """Return a function after which Ray Train takes any end of this worker's thread for a success: it closes the
    queue of errors. Raises ValueError if this version of Ray Train has no such queue."""
    try:
        context: Any = sys.modules[CONTEXT]
        errors = context.get_train_context().execution_context.training_thread_runner.get_exception_queue()
    except (KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(
            "ray: this version of Ray Train does not let a worker end that served its rank: take python -m bench launch=ray"
        ) from error
    return lambda: errors.put(None)
