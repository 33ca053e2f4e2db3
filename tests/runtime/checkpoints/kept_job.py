"""A job with a checkpoint within an epoch, and edits of what it kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ddp.checkpoint import checkpoint
from ddp.checkpoint.checkpoint import MANIFEST, find
from ddp.core.policies import POLICIES
from ddp.core.settings.checkpoints import Checkpointing
from ddp.engine import elche
from ddp.replica.task import Job
from tests.runtime import toy

EVERY = {"checkpoints": Checkpointing(4, "averages", spacing_s=0.0)}

Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    return make(tmp_path_factory.mktemp("made"))


def make(folder: Path) -> tuple[Job, Path]:
    """A job of two ranks under `cadence`, whose rounds do not depend on time, and a checkpoint of it within an epoch."""
    policy = POLICIES["cadence"](anchor=3, max_anchor=3, max_batch_diff=0)  # nor do its counts
    (folder / "scratch").mkdir()
    job = Job(
        task=toy.task, policy=policy, backend="nccl", epochs=3, batch_size=8, seed=3, world_size=2, deadline_s=30.0,
        scratch=folder / "scratch", checkpoint_folder=folder / "kept", **EVERY,
    )  # fmt: skip
    elche.run(job, lambda record, at: None)
    found, _ = find(folder / "kept")
    assert found is not None
    assert found.coordinator.ledgers[0].merged
    return job, found.path


@pytest.fixture
def job(made: tuple[Job, Path], tmp_path: Path) -> Job:
    """The job that goes on from a copy of it."""
    job, path = made
    shutil.copytree(path, tmp_path / "kept" / path.name)
    (tmp_path / "scratch").mkdir()
    return replace(job, resume=tmp_path / "kept" / path.name, checkpoint_folder=None, scratch=tmp_path / "scratch")


def at(job: Job) -> Path:
    assert job.resume is not None
    return job.resume


def change(job: Job, edit: Change) -> None:
    """Edit the plain form of the manifest."""
    path = at(job) / MANIFEST
    books = checkpoint.unbound(path.read_bytes())
    assert books is not None
    path.write_bytes(checkpoint.bound(msgspec.msgpack.encode(edit(msgspec.msgpack.decode(books)))))


def put(job: Job, name: str, held: Any) -> None:
    """Put another part into the checkpoint, with its sums."""
    path = at(job) / name
    if isinstance(held, bytes):
        path.write_bytes(held)
    else:
        torch.save(held, path)
    entry = [name, path.stat().st_size, checkpoint._sha256(path)]
    change(job, lambda body: body | {"files": [entry if file[0] == name else file for file in body["files"]]})
