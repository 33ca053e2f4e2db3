"""The models of the matrix: one file each. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp.registered import member

if TYPE_CHECKING:
    from ddp.replica.task import Task
    from models.setup import Recipe, Setup

MODELS: dict[str, str] = {
    "char_rnn": "models.char_rnn",
    "conv_ae": "models.conv_ae",
    "gpt_nano": "models.gpt_nano",
    "lenet": "models.lenet",
    "logistic": "models.logistic",
    "mlp": "models.mlp",
    "resnet": "models.resnet",
    "resnet34": "models.resnet34",
    "resnet_graph": "models.resnet_graph",
    "vit": "models.vit",
}
"""Name -> module, imported on use."""


def load(name: str) -> Setup:
    """The set-up of model `name`. KeyError for an unknown one; ValueError, in one line, for one that is broken."""
    from models.setup import Setup  # which imports the engine's tasks

    setup: Setup = member("model", name, MODELS[name], "SETUP", Setup)
    return setup


def make_task(name: str, recipe: Recipe, data_dir: str) -> Task:
    """The task of a model under a recipe; importable by name, so that a rank can call it."""
    return load(name).task(recipe, data_dir)
