"""A user's own set-up, for bugs to be put beside: images that are shifted by NumPy's own numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.models.parts import classification
from bench.models.setup import Recipe
from benchmarks.bugs.own_parts import hidden, setup
from ddp.replica.task import Task


def brighter(batch: Any, draws: Any) -> Any:
    """Make images brighter, by what NumPy draws."""
    return batch[0] + float(np.random.rand()) / 4, *batch[1:]


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    return replace(classification(hidden, torch.optim.Adam, recipe, data_dir), augment=brighter)


SETUP = setup("digits that NumPy makes brighter", task, 5e-3, 4312)
