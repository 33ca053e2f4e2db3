"""Ray Train's worker: its process outlives the function that trains, and any exception of the function fails the whole run.

So a worker that has served rank 0 must end its thread without a result that Ray Train takes for an error. Imports no Ray: in
a worker it is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from ddp.launcher.environment import RAY, Placement

CONTEXT = "ray.train.v2._internal.execution.context"
"""Module of Ray Train, from 2.43 on, that has the thread of the function."""


def within(placement: Placement) -> bool:
    """Return whether Ray Train started this process: `launch=ray` names itself, and a user's own actors do not know it."""
    return placement.launcher == RAY and not os.environ.get("DDP_LAUNCHER") and "ray.train" in sys.modules


def quiet_end() -> Callable[[], None]:
    """Return what makes Ray Train take any end of this worker's thread for a good one: its queue of errors is closed. Raises
    ValueError for a Ray Train that has none."""
    try:
        context: Any = sys.modules[CONTEXT]
        errors = context.get_train_context().execution_context.training_thread_runner.get_exception_queue()
    except (KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(
            "ray: this version of Ray Train does not let a worker end that served its rank: take python -m bench launch=ray"
        ) from error
    return lambda: errors.put(None)
