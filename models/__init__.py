"""The models of the matrix: one file each. Importing this package imports no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.models.data import own_data
from ddp import user_code
from ddp.registries import member
from ddp.registry import Registry
from ddp.user_code import CodeDigest

if __name__ != "bench.models":
    raise ImportError("the models are the package bench.models, which this folder is a part of: import that")

if TYPE_CHECKING:
    from bench.models.setup import Recipe, Setup
    from ddp.replica.task import Task

_OURS = {
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
MODELS: Registry[str] = Registry("models", _OURS, lambda entry: entry.value)
"""Name -> source (`ddp.user_code`), imported on use."""


def load(name: str) -> Setup:
    """Return the set-up of model `name`. Raise KeyError for an unknown name; ValueError, in one line, for a broken model
    file.

    If a recipe names a file as its data set, it is searched in the folder of the model's file."""
    from bench.models.setup import Setup  # imports the engine's tasks

    setup: Setup = member("model", name, MODELS[name], "SETUP", Setup)
    if MODELS.is_ours(name):
        return setup
    beside = user_code.file_of(MODELS[name]).parent
    named = {key: replace(recipe, data=own_data(recipe.data, beside)) for key, recipe in setup.recipes.items()}
    return replace(setup, recipes=named)


def own_model(word: str) -> str:
    """Return the name of a model: `word` itself, or the name of the user's file or module that `word` means, which is added
    to `MODELS`. Raise ValueError."""
    if word in MODELS or not user_code.is_source(word):
        return word
    name, source = user_code.named(word, Path.cwd())
    MODELS.enrol(name, source, source)
    return name


def make_task(name: str, recipe: Recipe, data_dir: str) -> Task:
    """Return the task of a model under a recipe. A function at module level, so a rank's process can import it."""
    from ddp.replica.task import Task

    task = load(name).task(recipe, data_dir)
    if not isinstance(task, Task):
        raise TypeError(f"the function `task` of SETUP must return a Task, not {task!r:.60}")
    return task


def make_own_task(name: str, recipe: Recipe, data_dir: str, code: tuple[CodeDigest, ...]) -> Task:
    """Return the task of a user's own model, or of a model on a user's own data. Works in any process. Raise ValueError if
    the code differs here from the code that the run was planned with."""
    for each in code:
        if user_code.digest(each.source) != each.sha256:
            raise ValueError(f"{each.source} is not what the run was planned with: it was changed, or is another here")
        if each.kind == "model":
            MODELS.enrol(each.name, each.source, each.source)
        else:
            own_data(each.source, name=each.name)
    return make_task(name, recipe, data_dir)
