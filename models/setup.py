"""What a model file says: one published set-up and its recipes.

A model file is `models/<name>.py` with a `SETUP`; adding one is that file and one line in `bench.models.MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.models.data.options import PLAIN, DataOptions
from ddp.replica.task import Task


@dataclass(frozen=True)
class Recipe:
    """How long and on what: `quick` (bundled real data, under a minute on one core) or `published`."""

    data: str
    """A key of `bench.models.data.DATA`."""
    epochs: int
    batch_size: int
    """Samples of one step of one rank."""
    lr: float
    """Learning rate at schedule 1.0."""
    target: float
    """Value of the metric that a sound engine reaches."""
    schedule: str = "constant"
    """A key of `bench.models.parts.SCHEDULES`."""
    lr_scale_ratio: float = 0.0
    """The rate is multiplied by 1 + ratio * (world_size - 1)."""
    depth: int | None = None
    """Layers with weights, of a model where they can be chosen; None: its own number."""
    augment: bool = False
    """Whether each image is cropped at random after padding by 4 pixels, and flipped half of the times (He et al. 2015)."""
    data_options: DataOptions = PLAIN
    """Settings of the data set, such as the length of a piece of text."""


@dataclass(frozen=True)
class Setup:
    """One model of the matrix."""

    summary: str
    """One line for `bench list`."""
    citation: str
    published: str
    """The published value, and what deviates from the paper here."""
    metric: str
    higher_is_better: bool
    recipes: dict[str, Recipe]
    task: Callable[[Recipe, str], Task]
    """(recipe, data folder) -> task. Reads no data. ValueError, in one line, for a recipe that cannot be."""
    depth: int | None = None
    """Layers with weights by default; None: their number cannot be chosen by `model.depth`."""

    def __post_init__(self) -> None:
        recipes = self.recipes.values() if isinstance(self.recipes, dict) else [None]
        if not all(isinstance(recipe, Recipe) for recipe in recipes):
            raise TypeError("recipes must be a dict of name to Recipe")
        if not callable(self.task):
            raise TypeError("task must be a function of a recipe and the data folder that makes a Task")
