"""What `Trainer` does not go on with, in one line: another run, model, data, optimizer, way to train or controller."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp.checkpoint.checkpoint import find
from tests.api.conftest import Make
from tests.runtime import toy


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 2))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"model_factory": wide}, "not those of this model"),
        ({"dataset": toy.data(150)}, "of 203 training samples, there are 150 now"),
        (
            {"optimizer_factory": lambda parameters: torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1)},
            "not the state of this optimizer",
        ),
    ],
    ids=["model", "data", "optimizer"],
)
def test_what_ranks_cannot_go_on_with_is_one_line(
    make: Make, tmp_path: Path, world_size: int, change: dict[str, Any], remedy: str
) -> None:
    make(world_size=world_size, epochs=3, checkpoint_folder=tmp_path / "kept").run().join()
    with pytest.raises(ValueError, match=remedy) as caught:
        make(world_size=world_size, epochs=3, resume=tmp_path / "kept", **change).run().join()
    assert "\n" not in str(caught.value)
    assert not hasattr(caught.value, "__notes__"), "no traceback of a rank"
    assert find(tmp_path / "kept")[0] is not None


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"seed": 4}, "of a run with seed=3, this one has 4"),
        ({"epochs": 5}, "of a run with epochs=3, this one has 5"),
        ({"world_size": 1}, "of a run with world_size=2, this one has 1"),
        ({"policy": "async"}, "of a run with policy=Cadence, this one has Async"),
        ({"dispatch": "partition"}, "of a run with dispatch=progressive, this one has partition"),
    ],
    ids=str,
)
def test_another_run_is_refused_before_anything_starts(
    make: Make, tmp_path: Path, change: dict[str, Any], remedy: str
) -> None:
    make(epochs=3, checkpoint_folder=tmp_path / "kept").run().join()
    with pytest.raises(ValueError, match=remedy):
        make(**{"epochs": 3, "resume": tmp_path / "kept"} | change)


def test_an_empty_or_missing_folder_is_refused(make: Make, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="there is no checkpoint in it; begin anew"):
            make(resume=place)
    with pytest.raises(ValueError, match="say where checkpoints are to be laid down"):
        make(checkpoint_callback=print)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr_scale_ratio": 1.0}, "of a run with lr_scale=1.0, this one has 2.0"),
        ({"max_grad_norm": 1.0}, "of a run with max_grad_norm=None, this one has 1.0"),
        ({"optimizer_factory": torch.optim.Adam}, "not the state of this optimizer (it has no betas, eps)"),
        (
            {"optimizer_factory": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5)},
            "not the state of this optimizer (it was begun with weight_decay=0, this one has 0.5); go on with what it was",
        ),
        (
            {"optimizer_factory": lambda parameters: torch.optim.SGD(parameters, lr=0.01)},
            "not the state of this optimizer (it was begun with lr=0.1, this one has 0.01); go on with what it was",
        ),
    ],
)
def test_another_way_to_train_is_no_way_to_go_on(make: Make, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    make(checkpoint_folder=tmp_path, policy="sync").run().join()
    with pytest.raises(ValueError, match=re.escape(said)):
        make(**change, resume=tmp_path, policy="sync").run().join()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"anchor": 5}, "of a run with anchor=3, this one has 5"),
        ({"speed_hint": [1.0, 0.5]}, "of a run with speed_hint=None, this one has [1.0, 0.5]"),
    ],
    ids=str,
)
def test_another_controller_is_no_way_to_go_on(make: Make, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    same: dict[str, Any] = {"policy": "cadence", "anchor": 3, "partition_ratios": [0.75, 0.25]}
    make(**same, checkpoint_folder=tmp_path).run().join()
    make(**same, resume=tmp_path).run().join()
    with pytest.raises(ValueError, match=re.escape(said)):
        make(**same | change, resume=tmp_path).run().join()


class Counting(torch.optim.SGD):
    """One that works in its groups, in memory that is never the same twice."""

    def __init__(self, parameters: Any, lr: Any = 0.1, pair: Any = (0.9, 0.99)) -> None:
        super().__init__(parameters, lr=lr)
        own = {"pair": pair, "room": torch.rand(3), "views": [torch.rand(2)], "past": [], "sum": torch.zeros(())}
        self.param_groups[0].update(own)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for name in ("room", "sum"):
            self.param_groups[0][name] += 1
        self.param_groups[0]["past"].append(1)


def test_what_an_optimizer_counts_in_its_groups_is_no_setting_of_it(make: Make, tmp_path: Path) -> None:
    same: dict[str, Any] = {"world_size": 1, "epochs": 2}
    make(**same, optimizer_factory=Counting, checkpoint_folder=tmp_path, checkpoint_every=1).run().join()
    first = find(tmp_path)[0]
    assert first is not None
    again = partial(Counting, pair=[torch.tensor(0.9, dtype=torch.float64), 0.99])
    make(**same, optimizer_factory=again, resume=first.path).run().join()
    with pytest.raises(ValueError, match=re.escape("begun with pair=(0.9, 0.99), this one has (0.9, 0.5)")):
        make(**same, optimizer_factory=partial(Counting, pair=(0.9, 0.5)), resume=first.path).run().join()
