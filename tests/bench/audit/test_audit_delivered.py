"""What a run hands over is audited: the final state, checkpoints; and whether settings reached the set-up."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.audit.audit_input import AuditOrder, saved_of
from bench.audit.bundled.setups import settings_reached
from bench.audit.delivered import delivered
from bench.audit.kept_files import read
from bench.models import load
from ddp.checkpoint import checkpoint as checkpoints
from ddp.checkpoint import parts
from ddp.core.settings.checkpoints import Checkpointing
from ddp.replica.memory import final_state
from ddp.replica.task import Task
from tests.bench.audit.audited import audited, different, ordered, train_alone
from tests.runtime import toy

Break = Callable[[dict[str, Any]], dict[str, Any]]
toy_task = partial(toy.task, samples=64)


def broken(monkeypatch: pytest.MonkeyPatch, change: Break) -> None:
    """Change each state that is saved."""
    for module in (final_state, parts):
        real = module.savable
        monkeypatch.setattr(module, "savable", lambda model, real=real: change(real(model)))


def rounded(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().bfloat16().to(value.dtype) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def misnamed(state: dict[str, Any]) -> dict[str, Any]:
    return {f"module.{name}": value for name, value in state.items()}


@pytest.mark.parametrize(
    ("change", "sign"), [(rounded, "differs from what the rank ended with"), (misnamed, "is missing")]
)
def test_a_final_state_of_another_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Break, sign: str
) -> None:
    job, records = train_alone(tmp_path / "sound", toy_task, keep_state=True)
    assert different(audited(job, records)) == []
    assert any(item.what == "delivered" and item.outcome == "equal" for item in audited(job, records).items)
    broken(monkeypatch, change)
    job, records = train_alone(tmp_path / "broken", toy_task, keep_state=True)
    (line,) = different(audited(job, records))
    assert "the final state" in line
    assert sign in line


class Own:
    """What a module may save besides."""


def test_a_state_with_objects_of_ones_own_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda state: {**rounded(state), "own": Own()})
    job, records = train_alone(tmp_path / "run", toy_task, keep_state=True)
    assert different(audited(job, records)) == []


def checkpoint(folder: Path, model: nn.Module, named: dict[str, Tensor]) -> Path:
    """A checkpoint's file with the model."""
    (folder / "000001").mkdir(parents=True)
    flat = torch.cat([tensor.reshape(-1) for tensor in [*model.parameters(), *model.buffers()]])
    torch.save({"tensors": [flat.detach()], "state_dict": named}, folder / "000001" / "model.pt")
    return folder


@pytest.mark.parametrize(
    ("change", "outcomes"),
    [
        (lambda named: named, ["equal"]),
        (rounded, ["different"]),
        (lambda named: dict(list(named.items())[1:]), []),
    ],
    ids=["sound", "rounded", "incomplete"],
)
def test_the_state_of_a_checkpoint_is_the_one_that_is_resumed(
    tmp_path: Path, change: Break, outcomes: list[str]
) -> None:
    job, records = train_alone(tmp_path / "run", toy_task)
    order = ordered(job, records)
    ends = read(order.kept, order.recorded).ends
    (parts_of,) = ends.values()
    values = {name.name: pieces[0].values.view(pieces[0].shape) for name, pieces in parts_of.items()}  # type: ignore[union-attr]
    model = nn.Module()
    for number, name in enumerate(parts_of):
        value = values[name.name].clone()
        if name.kind == "parameters":
            model.register_parameter(f"p{number}", nn.Parameter(value))
        else:
            model.register_buffer(f"b{number}", value)
    place = checkpoint(tmp_path / "checkpoints", model, change(values))
    assert [item.outcome for item in delivered(replace(order, checkpoints=place), ends)] == outcomes


def found(order: AuditOrder, task: Task, samples: int = 100) -> str:
    return " ".join(item.line for item in settings_reached(order, task, samples))


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet_graph", "gpt_nano"])
def test_settings_that_reached_the_set_up(tmp_path: Path, name: str) -> None:
    recipe = load(name).recipes["quick"]
    made = load(name).task(replace(recipe, lr=0.125), "data")
    job, records = train_alone(tmp_path / "run", toy_task, epochs=1)
    order = replace(ordered(job, records), model=name, lr=0.125, depth=recipe.depth, samples=100)
    assert found(order, made) == ""
    assert found(replace(order, lr=0.25), made) == "the optimizer's learning rate is 0.125, but 0.25 is set"
    measure = load(name).metric, load(name).higher_is_better, recipe.target
    assert found(replace(order, recipe="quick", measure=measure), made) == ""
    assert "committed: " in found(replace(order, recipe="quick", measure=(*measure[:2], 0.9 * recipe.target)), made)
    assert "committed: " in found(
        replace(order, recipe="quick", measure=(measure[0], not measure[1], recipe.target)), made
    )
    assert found(order, made, samples=99) == "the data set has 99 training samples, but 100 are set"
    if recipe.depth is not None:
        assert "layers, depth" in found(replace(order, depth=recipe.depth + 6), made)
    assert found(replace(order, model="", lr=0.25), made) == ""


class Counting(nn.Module):
    """A model that counts its calls in a buffer, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy.task(samples=64).model()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        assert isinstance(self.calls, Tensor)
        self.calls += 1
        out: Tensor = self.inner(inputs)
        return out


def test_a_buffer_that_an_evaluation_moves_by_itself_is_the_models_own(tmp_path: Path) -> None:
    def task() -> Task:
        return replace(toy.task(samples=64), model=Counting)

    job, records = train_alone(tmp_path / "run", task)
    assert [line for line in different(audited(job, records, model="")) if "calls" in line] == []
    assert [line for line in different(audited(job, records)) if "buffers calls changed after the evaluation" in line]


def test_the_last_evaluation_is_done_again_in_the_parts_that_it_had(tmp_path: Path) -> None:
    """A metric of batches that is no sum: other parts give another one."""

    def task() -> Task:
        plain = toy.task(samples=64)

        def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            loss, metric = plain.evaluate(model, batch)
            return loss, metric / (1 + len(batch[0]))

        return replace(plain, evaluate=evaluate)

    job, records = train_alone(tmp_path / "run", task)
    order = {"world_size": 3, "planned": False, "model": ""}
    assert [line for line in different(audited(job, records, **order)) if "metric" in line]
    assert [line for line in different(audited(job, records, **order, eval_parts=1)) if "metric" in line] == []


@pytest.mark.parametrize("what", ["", "model", "optimizer"])
def test_a_checkpoint_holds_what_was_to_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A buffer of the first save that is used again has an old model, which is whole in itself."""
    real, first = checkpoints.save, dict[str, Any]()

    def save(folder: Path, index: int, name: str, part: dict[str, Any]) -> checkpoints.File:
        old = first.setdefault(name, deepcopy(part))
        stale = {"model": ("tensors", "state_dict"), "optimizer": ("optimizer",), "": ()}[what]
        return real(folder, index, name, part | {key: old[key] for key in stale if key in old})

    monkeypatch.setattr(parts.checkpoint, "save", save)
    settings = Checkpointing(every=3, unit="averages", spacing_s=0.0)
    task = partial(toy.task, samples=64, optimizer="Adam")
    job, records = train_alone(tmp_path / "run", task, checkpoints=settings, checkpoint_folder=tmp_path / "saved")
    saved = saved_of(records)
    assert {rank for _, rank in saved} == {0, None}
    found = different(audited(job, records, saved=saved, checkpoints=tmp_path / "saved"))
    assert [line for line in found if f"the {what} in checkpoint" not in line] == []
    assert len(found) == bool(what)
    assert different(audited(job, records, checkpoints=tmp_path / "saved")) == []
