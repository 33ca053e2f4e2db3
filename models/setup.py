"""Defines the content of a model file: one published set-up and its recipes.

A model file is `models/<name>.py` with a `SETUP`. To add a model, write that file and add one line to
`bench.models.MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.models.data.options import PLAIN, DataOptions
from ddp.replica.task import Task


@dataclass(frozen=True)
class Recipe:
    """Data and training settings: `quick` (bundled real data, under a minute on one core) or `published`."""

    data: str
    """Key of `bench.models.data.DATA`."""
    epochs: int
    batch_size: int
    """Samples in one step of one rank."""
    lr: float
    """Learning rate where the schedule is 1."""
    target: float
    """Value of the metric that a correct engine reaches."""
    schedule: str = "constant"
    """Key of `bench.models.parts.SCHEDULES`."""
    lr_scale_ratio: float = 0.0
    """The learning rate is multiplied by 1 + ratio * (world_size - 1)."""
    depth: int | None = None
    """Layers with weights, if the model's depth can be chosen; None: its default."""
    augment: bool = False
    """Whether each image is padded by 4 pixels, randomly cropped, and flipped with probability .5 (He et al. 2015)."""
    data_options: DataOptions = PLAIN
    """Settings of the data set, such as the length of a piece of text."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, str):
            raise TypeError("data must be the name of a data set, or the path of a file, as text")
        if not isinstance(self.data_options, DataOptions):
            raise TypeError("data_options must be DataOptions(...)")
        if not all(isinstance(value, (int, float)) for value in (self.lr, self.target)):
            raise TypeError("lr and target must be numbers")


@dataclass(frozen=True)
class Setup:
    """One model of the matrix."""

    summary: str
    """One line for `bench list`."""
    citation: str
    published: str
    """The published value of the metric, and deviations from the paper."""
    metric: str
    higher_is_better: bool
    recipes: dict[str, Recipe]
    task: Callable[[Recipe, str], Task]
    """(recipe, data folder) -> task. Reads no data. Raises ValueError, in one line, for an invalid recipe."""
    depth: int | None = None
    """Default number of layers with weights; None: `model.depth` cannot choose it."""

    def __post_init__(self) -> None:
        recipes = self.recipes.values() if isinstance(self.recipes, dict) else [None]
        if not all(isinstance(recipe, Recipe) for recipe in recipes):
            raise TypeError("recipes must be a dict of name to Recipe")
        if not callable(self.task):
            raise TypeError("task must be a function of a recipe and the data folder that makes a Task")
