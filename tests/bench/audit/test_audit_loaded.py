"""The audit of ranks that begin with a loaded state: in a run that resumes, and as a rank joins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.audit.kept_files import KeptStep, read
from ddp.checkpoint.checkpoint import place
from ddp.core.messages.events import Finished
from ddp.core.settings.checkpoints import Checkpointing
from ddp.engine.loop import TrainingLoop
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from tests.bench.audit.audit_breaks import ADAM, Break, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import found_broken, train_together
from tests.bench.audit.test_audit_regrouped import LOST
from tests.runtime.conftest import in_process as in_process
from tests.slow import every

EPOCHS = 6


def train(folder: Path, mode: str, **fields: Any) -> tuple[Job, list[Any]]:
    """A job that saves a checkpoint every second epoch; or resumes from one."""
    folder.mkdir()
    fields = {
        "epochs": EPOCHS,
        "audit": "w1-s1-loaded",
        "checkpoints": Checkpointing(2, spacing_s=0.0),
        "checkpoint_folder": folder,
    } | fields
    return train_alone(folder, ADAM, **fields) if mode == "solo" else train_together(folder, mode, ADAM, **fields)


def steps(job: Job, records: list[Any], rank: int) -> list[KeptStep]:
    """What a rank kept, in order."""
    files = [file for record in records if isinstance(record, Finished) for file in record.kept]
    kept = [step for step in read(job.scratch, files).steps if step.rank == rank]
    return sorted(kept, key=lambda step: step.step)


def begins(job: Job, records: list[Any], rank: int) -> bool:
    """Whether a rank kept its first step from the loaded state."""
    first = steps(job, records, rank)[0]
    return any(first.step == step for step in BEGAN[rank])


BEGAN: dict[int, list[int]] = {}
"""Rank -> numbers of the first steps of its processes."""


def noted(step: Any, self: Any, batch: Any) -> Any:
    """Note the first step of a process from a loaded state."""
    if self.keeper is not None and self.keeper._draws is None and self.total_steps:
        BEGAN.setdefault(self.rank, []).append(self.total_steps)
    return step(batch)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", every(2, ["solo", "nccl_cadence", "nccl_sync", "cpu_async", "zero2"]))
def test_the_first_step_of_a_resumed_run_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    train(tmp_path / "begun", mode)
    BEGAN.clear()
    with monkeypatch.context() as patch:
        wrapped(TrainingLoop, "train", noted)(patch)
        job, records = train(tmp_path / "resumed", mode, resume=place(tmp_path / "begun", 0))
    assert len(BEGAN) == job.world_size
    assert all(begins(job, records, rank) for rank in BEGAN)
    assert different(audited(job, records, resumed=True, waiting=False, works=(), norms=())) == []


def forgotten(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """Clear the optimizer's state within the first step of a process that was started again."""
    if self._job.life and not vars(self).setdefault("stepped", False):
        self.stepped = True
        self.optimizer.state.clear()
    return step(batch, seen)


def lost(train_step: Any, self: Any, step: Any) -> Any:
    """Clear it before that step."""
    if self.job.life and not vars(self).setdefault("stepped", False):
        self.stepped = True
        self.replica.optimizer.state.clear()
    return train_step(step)


@pytest.mark.parametrize(
    ("mode", "breaks", "sign"),
    [
        ("nccl_cadence", wrapped(Replica, "step", forgotten), "step, rank 2"),
        ("cpu_async", wrapped(TrainingLoop, "train", lost), "is gone after the start with the state of round"),
    ],
    ids=["within the step", "before it"],
)
def test_a_rank_that_joins_and_loses_the_state_that_it_loaded_is_named(
    tmp_path: Path,
    in_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    breaks: Break,
    sign: str,
) -> None:
    found = found_broken(monkeypatch, tmp_path, mode, breaks, **LOST)
    assert any(sign in line for line in found), found
