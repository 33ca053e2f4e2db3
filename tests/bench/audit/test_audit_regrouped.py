"""The audit of ranks whose group changes, as one is lost and comes back: that leaves the state of the others alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.backends import snapshot
from ddp.backends.base import GroupBackend
from ddp.core.messages.join_events import Joined
from ddp.core.settings.faults import parse
from ddp.engine.loop import TrainingLoop
from ddp.engine.rank import RankLoop
from ddp.replica.memory.buffers import BufferChanges, Counters
from tests.bench.audit.audit_breaks import ADAM, Break, wrapped
from tests.bench.audit.audited import audited, different
from tests.bench.audit.test_audit_between import halved
from tests.bench.audit.test_audit_ranks import found_broken, train_together
from tests.runtime.conftest import in_process as in_process

LOST: dict[str, Any] = {"faults": (parse("2@5:raise"),), "restarts": None, "epochs": 12, "deadline_s": 5.0}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_sync", "nccl_cadence"])
def test_a_rank_may_take_the_state_of_a_peer(tmp_path: Path, mode: str) -> None:
    job, records = train_together(tmp_path, mode, ADAM, **LOST)
    assert sum(isinstance(record, Joined) for record in records) == 1
    report = audited(job, records, planned=False)
    assert different(report) == []
    assert report.count("equal", "average") >= 2, "of both survivors"


def forgotten(join: Any, self: Any, *about: Any) -> None:
    """Clear the optimizer's state where ranks meet."""
    join(*about)
    self.loop.replica.optimizer.state.clear()


def moved(leave: Any, self: Any, *about: Any) -> None:
    """Move a weight as a group is left."""
    leave(*about)
    with torch.no_grad():
        self.loop.replica.model.get_parameter("0.weight").mul_(1.5)


def weakened(regroup: Any, self: Any, *about: Any) -> None:
    """Halve the optimizer's state behind a change of the group."""
    regroup(*about)
    if self.loop.total_steps:
        halved(lambda *_: None, self)


def kept(undo: Any, self: Any) -> None:
    """Leave buffers as a broken step made them."""


def repeated(train: Any, self: Any, step: Any) -> None:
    """Train the batch before again, in place of every third one; of another size, it would be no report of these orders."""
    before = vars(self).setdefault("_before", step)
    alike = (before.batch.epoch, before.batch.samples) == (step.batch.epoch, step.batch.samples)
    again = self.total_steps % 3 == 2 and alike
    self._before = replace(step, batch=before.batch) if again else step
    self.expect([self._before.batch])
    train(self._before)


@pytest.mark.parametrize(
    ("mode", "breaks", "sign"),
    [
        ("nccl_sync", wrapped(RankLoop, "_regroup", weakened), "exp_avg changed after regrouping"),
        ("nccl_cadence", wrapped(RankLoop, "_regroup", weakened), "exp_avg changed after regrouping"),
        ("nccl_sync", wrapped(GroupBackend, "join", forgotten), "exp_avg is gone after regrouping"),
        ("nccl_cadence", wrapped(GroupBackend, "join", forgotten), "exp_avg is gone after regrouping"),
        ("nccl_sync", wrapped(GroupBackend, "leave", moved), "parameters 0.weight changed after regrouping"),
        ("nccl_cadence", wrapped(TrainingLoop, "train", repeated), "positions, "),
        ("nccl_sync", wrapped(BufferChanges, "undo", kept), "buffers 1.running_mean changed after undoing step"),
        ("nccl_sync", wrapped(Counters, "undo", kept), "buffers 1.num_batches_tracked changed after undoing step"),
    ],
    ids=["behind it, sync", "behind it", "sync", "cadence", "leave", "a batch again", "buffers", "counters"],
)
def test_what_a_change_of_the_group_changes_is_named(
    tmp_path: Path,
    in_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    breaks: Break,
    sign: str,
) -> None:
    found = found_broken(monkeypatch, tmp_path, mode, breaks, **LOST)
    assert any(sign in line for line in found), found


def forgetful(evaluate: Any, self: Any, *about: Any) -> None:
    """Halve the momenta of a group of survivors at each evaluation."""
    evaluate(*about)
    if self.begun > 1:
        for state in self.replica.optimizer.state.values():
            state["exp_avg"].div_(2)


def test_what_an_evaluation_changes_after_a_loss_is_named(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        wrapped(TrainingLoop, "evaluate", forgetful)(patch)
        job, records = train_together(tmp_path, "nccl_cadence", ADAM, **LOST | {"restarts": 0})
    found = different(audited(job, records, planned=False))
    assert any("exp_avg changed after the evaluation" in line for line in found), found
    assert different(audited(job, records, planned=False, untouched=False)) == []


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["cpu_async", "cpu_sync"])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_loss_that_nobody_waits_for_leaves_all_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, breaks: bool
) -> None:
    """Nor need a rank take the state of another then."""
    with monkeypatch.context() as patch:
        if breaks:
            wrapped(snapshot.Backend, "snapshot", halved)(patch)
        job, records = train_together(tmp_path, mode, ADAM, **LOST | {"restarts": 0})
    report = audited(job, records, planned=False, waiting=False)
    assert any("exp_avg changed after the snapshot" in line for line in different(report)) is breaks
    assert breaks or different(report) == []
    assert report.count("equal", "average") >= 2, "of both survivors"
    assert different(audited(job, records, planned=False, waiting=False, moves=True)) == []
