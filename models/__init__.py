"""The models of the matrix: one file each. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp.registry import member

if __name__ != "bench.models":
    raise ImportError("the models are the package bench.models, which this folder is a part of: import that")

if TYPE_CHECKING:
    from bench.models.setup import Recipe, Setup
    from ddp.replica.task import Task

MODELS: dict[str, str] = {
    "char_rnn": "bench.models.char_rnn",
    "conv_ae": "bench.models.conv_ae",
    "gpt_nano": "bench.models.gpt_nano",
    "lenet": "bench.models.lenet",
    "logistic": "bench.models.logistic",
    "mlp": "bench.models.mlp",
    "resnet": "bench.models.resnet",
    "resnet34": "bench.models.resnet34",
    "resnet_graph": "bench.models.resnet_graph",
    "vit": "bench.models.vit",
}
"""Name -> module, imported on use."""


def load(name: str) -> Setup:
    """Return the set-up of model `name`. Raise KeyError for an unknown one; ValueError, in one line, for a broken one."""
    from bench.models.setup import Setup  # which imports the engine's tasks

    setup: Setup = member("model", name, MODELS[name], "SETUP", Setup)
    return setup


def make_task(name: str, recipe: Recipe, data_dir: str) -> Task:
    """Return the task of a model under a recipe; importable by name, so that a rank can call it."""
    return load(name).task(recipe, data_dir)
