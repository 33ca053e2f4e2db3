"""A user's own model in all that starts from a command line: searches, other processes, the look before the ranks."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import models
from bench.base.usage import UsageError
from bench.command import cli
from bench.command.sweeps import submitted
from bench.config.compose import _searching, composing
from bench.config.composed import register
from bench.config.user_parts import named_by
from bench.models.setup import Recipe, Setup
from bench.prove.oracle import OracleCourse, PlainTrainer
from bench.runner import supervise
from bench.runner.preflight import try_step
from ddp import record_scalar
from ddp.core.samples.spans import Batch
from ddp.core.settings.loader import Loading
from ddp.replica.task import Task
from ddp.replica.trainable import is_sum
from tests.models.test_own import write_example
from tests.runtime import toy

MAXIMIZED = "hydra.sweeper.direction=maximize"


@pytest.mark.parametrize("word", ["model.name=touch.py", "+experiment=mine"])
def test_a_search_goes_the_way_in_which_the_metric_of_an_own_model_gets_better(here: Path, word: str) -> None:
    write_example(here)
    (here / "own/experiment").mkdir(parents=True)
    (here / "own/experiment/mine.yaml").write_text("# @package _global_\nmodel: {name: touch.py}\n")
    register()
    words = (word.removeprefix("+"), "hydra/sweeper=optuna", "train.lr=interval(0.1,1)")
    assert _searching(words, "own")[-1] == MAXIMIZED


def test_a_search_of_a_model_that_there_is_not_is_refused(here: Path) -> None:
    register()
    with pytest.raises(UsageError, match="tuch"):
        _searching(("model.name=tuch", "hydra/sweeper=optuna"), None)


def test_processes_that_are_started_get_the_file_of_an_own_model_and_the_folder_of_presets(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_example(here)
    (here / "own/experiment").mkdir(parents=True)
    (here / "own/experiment/mine.yaml").write_text("# @package _global_\nseed: 1\n")
    cells: list[list[str]] = []
    fake: Any = SimpleNamespace(
        demand=lambda: None, submit=lambda output, left, settings: cells.extend(left.values()) or 0
    )
    monkeypatch.setattr(submitted, "module", lambda name: fake)
    words = ["--config-dir", "own", "experiment=mine", "model=touch.py", "data.dir=.", "launch=slurm"]
    assert cli.dispatch(words) == 0
    assert cells == [
        ["--config-dir", str(here / "own"), "experiment=mine", f"model={here}/touch.py", "data.dir=.", "force=true"]
    ]
    commands: list[list[str]] = []
    monkeypatch.setattr(supervise, "_run", lambda command, environ: commands.append(command) or 0)
    assert cli.dispatch(["model=touch.py", "supervise=true"]) == 0
    assert commands == [[sys.executable, "-m", "bench", "model=touch.py"]]


def recording(model: nn.Module, batch: Any) -> Tensor:
    record_scalar("samples", len(batch[0]))
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def recorded_task() -> Task:
    return replace(toy.task(), loss=recording)


def test_a_loss_that_is_a_sum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a sum, or contains one, and ranks weigh means.*return the mean"):
        try_step(replace(toy.task(norm=True), loss=lambda *given: toy.evaluate(*given)[0]), 4, Loading())


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda indices: torch.arange(1.0, 3.0)[indices].mean(), False),
        (lambda indices: torch.arange(1.0, 3.0)[indices].sum(), True),
        (lambda indices: torch.tensor(math.inf), False),
        (lambda indices: torch.tensor(len(indices)).log(), False),  # of a batch of equal embeddings
        (lambda indices: 1 / 0, False),
    ],
)
def test_a_sum_is_told_from_what_else_grows_with_the_batch(loss: Any, told: bool) -> None:
    assert is_sum(loss, 100) == told


def test_an_own_model_may_record_scalars_where_its_loss_is_tried_and_proved() -> None:
    try_step(recorded_task(), 4, Loading())
    trainer = PlainTrainer(OracleCourse(recorded_task, 1, 4, 1))
    assert trainer.loss(Batch(0, 0, 4, 4)).requires_grad


def test_what_is_no_task_and_no_model_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe("digits", 1, 4, 0.1, 0.5)
    setup = Setup("a", "b", "c", "accuracy", True, {"quick": recipe}, lambda recipe, data_dir: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(models, "load", lambda name: setup)
    with pytest.raises(TypeError, match=r"^the function `task` of SETUP must return a Task, not None$"):
        models.make_task("own", recipe, "")
    with pytest.raises(
        TypeError, match=r"^the function that builds the model must return a torch\.nn\.Module, not None$"
    ):
        try_step(replace(toy.task(), model=lambda: None), 4, Loading())  # type: ignore[arg-type,return-value]


def test_a_model_of_an_entry_point_keeps_the_name_that_the_list_shows(here: Path) -> None:
    write_example(here)
    models.MODELS["hand"] = "other_package.touch"
    words = ("hand", models.own_model("touch.py"))
    register()
    named = {}
    with composing() as compose:
        for word in words:
            named[word] = compose([f"model={word}"]).model.name
    assert named == {"hand": "hand", "touch": str(here / "touch.py")}
    for source, again in (("other_package.touch", "hand"), (str(here / "touch.py"), str(here / "touch.py"))):
        assert named_by({"code": {"model": {"source": source}}}, "model", "hand") == again


def test_a_model_that_is_a_module_of_this_folder_is_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its run has the name of the file, so it counted as another model than the one chosen, and was refused."""
    (here / "mine").mkdir()
    (here / "mine/__init__.py").touch()
    (here / "mine/net.py").write_text("from bench.models.mlp import SETUP\n")
    assert cli.dispatch(["plan", "model=mine.net", "mode=solo"]) == 0
    assert "planned: 1 run of 1 cell" in capsys.readouterr().out
