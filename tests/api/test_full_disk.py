"""A disk that is full for a while: the run goes on, says which checkpoint is missing and what there is, makes the next."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp import RankFailed
from ddp.checkpoint.checkpoint import find
from tests.api.conftest import Make
from tests.api.trained import WORLDS
from tests.slow import few

SOFT, HARD = resource.getrlimit(resource.RLIMIT_FSIZE)


LARGE: dict[str, Any] = {
    "model_factory": lambda: nn.Sequential(nn.Linear(6, 40_000), nn.Tanh(), nn.Linear(40_000, 2)),
    "optimizer_factory": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
}
"""With a state of 1.4 MB."""


@pytest.fixture(autouse=True)
def limits_put_back() -> Iterator[None]:
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (SOFT, HARD))


def full_in(first: int, last: int) -> Any:
    """In these epochs no file of a rank may have more than 1 MB."""

    def callback(epoch: int, worker: Any) -> None:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000 if first <= epoch <= last else hard, hard))

    return callback


@pytest.mark.parametrize(("world_size", "policy"), few(WORLDS, ["sync", "cadence"]))
def test_a_checkpoint_without_room_is_named_with_what_there_is(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int, policy: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.append(text))
    settings: dict[str, Any] = {"world_size": world_size, "policy": policy, "epochs": 6, "checkpoint_folder": tmp_path}
    make(**settings, **LARGE, epoch_callback=full_in(2, 3)).run().join()
    missing = [text for text in said if "could not be made" in text]
    assert missing
    folder = re.escape(str(tmp_path))
    named = rf"a checkpoint could not be made: File too large: {folder}/\.part-\d+/rank-\d\.pt; "
    what = rf"the last one is {folder}/\d+, after \d epochs: Trainer\(\.\.\., resume='{folder}'\) goes on from it"
    assert all(re.fullmatch(named + what, text) for text in missing), missing
    assert all("\n" not in text for text in missing)
    found, problems = find(tmp_path)
    assert found is not None
    assert (found.coordinator.epochs, problems) == (5, [])
    assert not list(tmp_path.glob(".part-*")), "nothing takes room for nothing"


def test_a_run_that_fails_says_what_it_can_be_gone_on_from(make: Make, tmp_path: Path) -> None:
    def callback(epoch: int, worker: Any) -> None:
        if epoch == 2:
            raise OSError(28, "No space left on device", "/full/disk")

    with pytest.raises(RankFailed, match=r"No space left on device: '/full/disk'") as caught:
        make(world_size=1, epochs=4, checkpoint_folder=tmp_path, epoch_callback=callback).run().join()
    (note,) = caught.value.__notes__
    assert (
        note
        == f"the last one is {tmp_path / '000001'}, after 2 epochs: Trainer(..., resume='{tmp_path}') goes on from it"
    )
