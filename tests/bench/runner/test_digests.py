"""A changed step, model, constant, data set or module of the user's own is another task; a comment is not."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bench.runner.digests import TaskDigest, data_digest
from ddp.data.dataset import as_source

SCRIPT = """
import argparse
import copy
import functools
import math
import torch
from torch import nn
SCALE = 0.5
args = argparse.Namespace(lr=0.5, seed=0)
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 2)
    def forward(self, x):
        return self.layer(x).relu()
def helper(x):
    return x * SCALE
@functools.cache
def even(x):
    return x % 2 == 0
def step(model, batch):
    '''What it learns.'''
    return helper(model(batch[0])).mean() * args.lr * even(2)
def made(factor):
    return lambda model, batch: step(model, batch) * factor
given = Net, made(2.0), {1, 2, 3}
"""


def digest(text: str) -> str:
    """That of a script, from its own start."""
    module: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "touch.py", "exec"), module)
    return TaskDigest().of([module["given"]])


def test_the_same_script_has_the_same_digest_wherever_its_lines_are() -> None:
    spaced = SCRIPT.replace("def helper", "\n\n# what it is for\ndef helper").replace("What it learns", "Else")
    assert digest(SCRIPT) == digest(SCRIPT) == digest(spaced)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x * SCALE", "x + SCALE"),
        ("SCALE = 0.5", "SCALE = 0.25"),
        ("width=4", "width=5"),
        (".relu()", ".tanh()"),
        ("made(2.0)", "made(3.0)"),
        ("* factor", "/ factor"),
        ("{1, 2, 3}", "{1, 2, 4}"),
        ("nn.Linear(width, 2)", "nn.Linear(width, 2, bias=False)"),
        (".mean()", ".sum()"),
        ("== 0", "== 1"),
        ("lr=0.5", "lr=0.25"),
    ],
)
def test_what_changes_the_task_changes_the_digest(before: str, after: str) -> None:
    changed = SCRIPT.replace(before, after)
    assert changed != SCRIPT
    assert digest(changed) != digest(SCRIPT)


def test_settings_that_the_task_does_not_read_are_no_part_of_it() -> None:
    assert digest(SCRIPT.replace("seed=0", "seed=1")) == digest(SCRIPT)
    whole = SCRIPT.replace("* args.lr", "* len(vars(args))")
    assert digest(whole.replace("seed=0", "seed=1")) != digest(whole)
    closed = "def main(args):\n    return lambda: net(args.width)\ngiven = main(args)\n"
    closed = SCRIPT.replace("lr=0.5", "width=3") + closed
    assert digest(closed.replace("seed=0", "seed=1")) == digest(closed)
    assert digest(closed.replace("width=3", "width=4")) != digest(closed)


def test_objects_count_with_what_is_in_them() -> None:
    def of(value: Any) -> str:
        return TaskDigest().of([value])

    layer = torch.nn.Linear(2, 2)
    before = of(functools.partial(layer))
    assert of(functools.partial(layer)) == before
    with torch.no_grad():
        layer.weight[0, 0] += 1
    assert of(functools.partial(layer)) != before
    values: list[Any] = [1]
    values.append(values)
    assert of(values) == of(values), "what holds itself ends"
    assert of(torch.Generator().manual_seed(1)) == of(torch.Generator().manual_seed(1)), "by no address"
    assert of(object()) == of(object())


@pytest.mark.parametrize(("first", "inside"), [("import own_parts\n", ""), ("", "import own_parts; ")])
def test_modules_of_ones_own_count_by_their_files(
    first: str, inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_parts.py").write_text("def width():\n    return 3\n")
    (tmp_path / "own_model.py").write_text(
        f"{first}import rich\n\ndef build():\n    {inside}return own_parts.width()\n"
    )

    def read() -> tuple[str, str]:
        for name in ("own_model", "own_parts"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        build: Callable[[], int] = importlib.import_module("own_model").build
        task = TaskDigest()
        return task.of([build]), task.dependencies

    code, before = read()
    assert "own_model " in before
    assert "own_parts " in before
    assert f"python 3.{sys.version_info.minor}" in before
    assert "rich " in before
    assert "torch" not in before
    (tmp_path / "own_parts.py").write_text("def width():\n    return 14\n")
    assert read() != (code, before)
    for name in ("own_model", "own_parts"):
        sys.modules.pop(name)


class Drawing(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, shift: float, random: bool = False) -> None:
        self.shift, self.random = shift, random

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index + self.shift) + (torch.rand(2) if self.random else 0.0)


def test_data_counts_by_its_samples_as_far_as_they_stay_the_same() -> None:
    def of(data: Any) -> str:
        return data_digest(TaskDigest(), as_source(data))

    kept = torch.random.get_rng_state()
    values = torch.arange(12.0).reshape(6, 2)
    assert of(values) == of(values.clone())
    assert of(values) != of(values + 1e-6)
    assert of(Drawing(0.0)) == of(Drawing(0.0))
    assert of(Drawing(0.0)) != of(Drawing(0.5))
    assert of(Drawing(0.0, random=True)) == of(Drawing(0.5, random=True))
    assert torch.equal(torch.random.get_rng_state(), kept)


OBJECTS = """
import abc, copy, enum, pickle, typing
from dataclasses import dataclass
from functools import cached_property
import pydantic
import torch
from torch import distributions, nn
class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.tensor(index)
class Loss:
    def __init__(self, smooth):
        self.smooth = smooth
    def __call__(self, model, batch):
        return self.smooth
    @cached_property
    def twice(self):
        return 2 * self.smooth
class Slotted:
    __slots__ = ("here", "__dict__")
    @cached_property
    def there(self):
        return 5
@dataclass
class Settings:
    rate: float = 0.1
    inner: typing.List["Settings"] = ()
class Part(enum.Flag):
    HEAD = 1
    BODY = 2
    BOTH = 3
class Whole(enum.IntFlag, boundary=enum.KEEP):
    HEAD = 1
    BODY = 2
class Shape(abc.ABC):
    pass
class Callable(typing.Protocol):
    def __call__(self): ...
class Called(Callable):
    def __call__(self):
        return 1
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()
    def forward(self, x):
        return self.layer(x)
class Checked(pydantic.BaseModel):
    rate: float = 0.1
    @pydantic.field_validator("rate")
    def halved(cls, value):
        return value / 2
    @cached_property
    def twice(self):
        return 2 * self.rate
loss, slotted, settings, checked = Loss(0.1), Slotted(), Settings(), Checked()
choice = distributions.Categorical(logits=torch.arange(3.0))
squashed = distributions.TanhTransform(cache_size=1)
"""
USES = {
    "Points()": "copy.deepcopy(Points())",
    "loss": "loss(None, None), loss.twice, pickle.loads(pickle.dumps(loss))",
    "slotted": "slotted.there, copy.copy(slotted)",
    "settings": "copy.deepcopy(settings), typing.get_type_hints(Settings)",
    "Part": "Part.HEAD | Part.BODY, Part(0), ~Part.HEAD, Part(-1)",
    "Part.BOTH": "Part(0), ~Part.BODY",
    "Whole": "Whole.HEAD | 64, ~Whole.BODY",
    "Shape": "isinstance(1, Shape), Shape.__annotations__",
    "Called": "Called(), Called.__annotations__",
    "Net": "copy.deepcopy(Net()), Net.__annotations__",
    "Checked": "Checked.__signature__, Checked(rate=2), Checked.model_json_schema()",
    "checked": "checked.twice, checked.model_dump(), copy.deepcopy(checked)",
    "choice": "choice.probs, choice.sample(), copy.deepcopy(choice)",
    "squashed": "squashed(torch.zeros(2)), squashed.inv",
    "torch.compile(Net().forward, backend='eager')": "value(torch.zeros(2))",
}


def objects(monkeypatch: pytest.MonkeyPatch, script: str = OBJECTS) -> dict[str, Any]:
    """The names of a script, which runs as `__main__`."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(script, "touch.py", "exec"), vars(main))
    return vars(main)


@pytest.mark.parametrize(("expression", "use"), USES.items())
def test_what_was_used_is_the_same_task(expression: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickling an object adds `__slotnames__` to its class: solo had it at its digest, and runs of several ranks did
    not."""
    names = objects(monkeypatch)
    value = names["value"] = eval(expression, names)
    digests = [TaskDigest().of([value])]
    for _ in range(2):
        eval(use, names)
        digests.append(TaskDigest().of([value]))
    anew = objects(monkeypatch)
    digests.append(TaskDigest().of([eval(expression, anew)]))
    assert len(set(digests)) == 1


def test_a_data_set_that_was_packed_is_the_same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    source = as_source(objects(monkeypatch)["Points"]())
    before = data_digest(TaskDigest(), source)
    copy.deepcopy(source)
    assert data_digest(TaskDigest(), source) == before


@pytest.mark.parametrize(
    ("expression", "before", "after"),
    [
        ("loss", "Loss(0.1)", "Loss(0.2)"),
        ("loss", "2 * self.smooth", "3 * self.smooth"),
        ("Part", "BOTH = 3", "TAIL = 4"),
        ("Called", "return 1", "return 2"),
        ("Checked", "float = 0.1", "float = 0.2"),
        ("Checked", "value / 2", "value / 3"),
        ("checked", "Checked()", "Checked(rate=3)"),
        ("choice", "logits=torch.arange", "probs=torch.arange"),
        ("choice", "arange(3.0)", "arange(4.0)"),
    ],
)
def test_what_an_object_was_made_with_counts(
    expression: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [objects(monkeypatch, script)[expression] for script in (OBJECTS, OBJECTS.replace(before, after))]
    assert before in OBJECTS
    assert len({TaskDigest().of([value]) for value in both}) == 2
