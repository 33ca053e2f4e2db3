"""Which parameters are frozen and which modules are in eval mode goes on with a run: callbacks are not repeated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ddp import WorkerHandle
from ddp.checkpoint.parts import AMID
from tests.api.conftest import Make
from tests.api.trained import equal
from tests.runtime import toy
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(autouse=True)
def shares_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let graph mode keep equal shares: on a busy machine others may be measured, which change the last bits."""
    monkeypatch.setattr("ddp.graph.balance._due", lambda steps: False)


def frozen() -> nn.Module:
    model = toy.net(norm=True)
    model[3].bias.requires_grad_(False)
    return model


def freeze(epoch: int, worker: WorkerHandle) -> None:
    if epoch == 1:
        worker.model[0].requires_grad_(False)
        worker.model[1].eval()


def unfreeze(epoch: int, worker: WorkerHandle) -> None:
    if epoch == 1:
        worker.model[3].requires_grad_(True)


@pytest.mark.parametrize(
    ("mode", "model", "callback"),
    [
        ("solo", frozen, unfreeze),
        *((mode, partial(toy.net, norm=True), freeze) for mode in ("solo", "nccl_sync", "zero3", "graph_sync")),
        *slow(*((mode, partial(toy.net, norm=True), freeze) for mode in ("cpu_sync", "zero1", "zero2"))),
    ],
)
def test_what_a_callback_froze_or_set_to_eval_mode_stays_so(
    make: Make, tmp_path: Path, mode: str, model: Callable[[], nn.Module], callback: Any
) -> None:
    """A frozen layer trained again, an unfrozen one never did, and batch norm moved."""
    same: dict[str, Any] = {"mode": mode, "world_size": 1 + (mode != "solo"), "model_factory": model, "epochs": 4}
    whole = make(**same, epoch_callback=callback, checkpoint_folder=tmp_path).run().join()
    resumed = make(**same, epoch_callback=callback, resume=tmp_path).run().join()
    assert equal(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize(("mode", "every"), [("solo", 0), ("solo", 20), ("graph_sync", 0), ("graph_sync", 10)])
def test_a_run_whose_callback_changes_the_augmentation_goes_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, every: int
) -> None:
    """It was refused as one with other data. `every`: averages between checkpoints; 0: an epoch."""
    said, factor = set[str](), {"of": 1.0}
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.add(text))
    same: dict[str, Any] = {
        **{"mode": mode, "world_size": 1 + (mode != "solo"), "epochs": 3},
        "epoch_callback": lambda epoch, worker: factor.update(of=0.5**epoch),
        "augment": lambda batch, draws: (batch[0] * factor["of"], batch[1]),
    }
    unit: dict[str, Any] = {"checkpoint_every": every, "checkpoint_unit": "averages"} if every else {}
    whole = make(**same, **unit, checkpoint_folder=tmp_path).run().join()
    assert not said
    factor["of"] = 1.0
    resumed = make(**same, resume=tmp_path).run().join()
    assert equal(resumed.state_dict(), whole.state_dict()) == (not every)
    assert said == ({AMID} if every else set())
