"""A user's own set-ups, for bugs to be put beside: nothing is recorded in a step, so that many ranks fit one operation."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.models.parts import classification, cross_entropy
from bench.models.setup import Recipe
from benchmarks.bugs.own_parts import hidden, setup
from ddp.replica.task import Task


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    return replace(classification(hidden, torch.optim.Adam, recipe, data_dir), loss=cross_entropy)


SETUP = setup("digits, nothing else", task, 5e-3, 7546, schedule="cosine")
