"""What ranks pass on to those that come back: one file at a time, and no room for it costs nobody who has the state."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp.backends import passed_state
from ddp.core.errors import OutOfResources
from ddp.core.membership.joining import TRIES
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Finished
from ddp.core.messages.join_events import Joined
from ddp.core.settings.faults import parse
from tests.runtime import toy
from tests.runtime.checkpoints.test_full_disk import limited
from tests.runtime.conftest import Play
from tests.runtime.losses.test_mishap import trained_once

CPU = torch.device("cpu")


def test_the_file_of_an_earlier_round_is_removed(tmp_path: Path) -> None:
    for round in (2, 9, 10):
        passed_state.write(tmp_path, round, {"round": round})
        assert list(tmp_path.iterdir()) == [passed_state.place(tmp_path, round)]
    assert passed_state.read(tmp_path, 10, CPU) == {"round": 10}


def test_without_room_nothing_is_left_and_whoever_reads_is_told(tmp_path: Path) -> None:
    with limited(resource.RLIMIT_FSIZE, 20_000):
        passed_state.write(tmp_path, 3, {"state": torch.zeros(100_000)})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutOfResources, match=r"could not be written to \S+shared-3.pt: [\d,.]+ MB are free there"):
        passed_state.read(tmp_path, 3, CPU)


def test_functions_are_passed_on_and_what_cannot_be_is_told_to_whoever_reads(tmp_path: Path) -> None:
    """A function in a group of the optimizer ended the ranks that trained, one after the other."""
    passed_state.write(tmp_path, 3, {"state": lambda: 7})
    assert passed_state.read(tmp_path, 3, CPU, plain=False)["state"]() == 7
    passed_state.write(tmp_path, 4, {"state": Lock()})
    with pytest.raises(RuntimeError, match="cannot be sent to a rank that joins: cannot pickle"):
        passed_state.read(tmp_path, 4, CPU)


@pytest.mark.usefixtures("in_process")
def test_a_rank_comes_back_to_none_that_cannot_write_and_the_others_train_on(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were lost, one after the other."""

    def full(state: Any, file: Any, **how: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(passed_state, "torch", SimpleNamespace(save=full, load=torch.load))
    more = {"world_size": 3, "deadline_s": 5.0, "epochs": 8, "restarts": None}
    played = play("cadence", "nccl", faults=(parse("1@5:raise"),), options=toy.short_windows("cadence"), **more)
    assert {drop.rank for drop in played.of(Drop)} == {1}
    assert len(played.of(Drop)) == 1 + TRIES
    assert played.of(Joined) == []
    assert sorted(event.rank for event in played.of(Finished)) == [0, 2]
    assert trained_once(played)
