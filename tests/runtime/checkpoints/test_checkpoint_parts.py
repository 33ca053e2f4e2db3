"""Parts of a checkpoint that are another rank's, another checkpoint's or another model's: one line, no code run."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.checkpoint import checkpoint
from ddp.checkpoint.checkpoint import MODEL, InvalidCheckpoint, read, resume
from ddp.engine import elche
from ddp.replica.task import Job
from tests.runtime import toy
from tests.runtime.checkpoints.kept_job import EVERY, Change, at, change, put
from tests.runtime.checkpoints.kept_job import job as job
from tests.runtime.checkpoints.kept_job import made as made

pytestmark = pytest.mark.usefixtures("in_process")


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def run(job: Job) -> None:
    elche.run(job, lambda record, at: None)


def other_model(job: Job) -> dict[str, Any]:
    wide = torch.nn.Linear(50, 50)
    held = torch.load(at(job) / MODEL, weights_only=True)
    return held | {"tensors": [torch.cat([p.detach().flatten() for p in wide.parameters()])], "kept": []}


def with_key(name: str, key: str, value: Any) -> Change:
    def edit(job: Job) -> Any:
        held = torch.load(at(job) / name, weights_only=True)
        return {k: v for k, v in held.items() if k != key} | ({} if value is KeyError else {key: value})

    return edit


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (MODEL, lambda job: {"tensors": Evil(job.scratch / "run")}, "not a part of a checkpoint"),
        ("rank-0.pt", lambda job: Evil(job.scratch / "run"), "not a part of a checkpoint"),
        (MODEL, lambda job: b"", "not a part of a checkpoint"),
        (MODEL, lambda job: b"PK\x03\x04 no archive", "not a part of a checkpoint"),
        (MODEL, lambda job: [1, 2], "not a part of a checkpoint"),
        (MODEL, other_model, "parameters and buffers are not those of this model"),
        (MODEL, with_key(MODEL, "of", KeyError), "a part of no checkpoint lies where the model of checkpoint 2 of run"),
        (MODEL, with_key(MODEL, "data", KeyError), "does not say what data it is of"),
        (MODEL, with_key(MODEL, "data", {"training": {}, "evaluation": 3}), "does not say what data it is of"),
        (MODEL, with_key(MODEL, "tensors", KeyError), "are not those of this model"),
        (MODEL, with_key(MODEL, "tensors", {"a": 1}), "are not those of this model"),
        (MODEL, with_key(MODEL, "kept", [torch.zeros(3)]), "averages are not those of this model"),
        ("rank-1.pt", with_key("rank-1.pt", "optimizer", KeyError), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "optimizer", {"state": {}, "param_groups": []}), "not the state of this"),
        (
            "rank-1.pt",
            with_key("rank-1.pt", "rates", (None, float("nan"), 1.0, False)),
            "finite number of 0 or more, not nan",
        ),
        ("rank-1.pt", with_key("rank-1.pt", "rates", "abc"), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "others", ((3, (1,), None), {})), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "begun", 10**9), "not the state of this optimizer"),
        ("rank-1.pt", with_key("rank-1.pt", "steps", "many"), "not the state of this optimizer"),
    ],
)
def test_parts_that_cannot_be_gone_on_with_are_one_line(job: Job, name: str, content: Change, why: str) -> None:
    put(job, name, content(job))
    with pytest.raises(InvalidCheckpoint, match=why) as caught:
        run(job)
    assert "\n" not in str(caught.value)
    assert not (job.scratch / "run").exists(), "code was run"
    assert read(at(job)), "it is still there"


def test_parts_of_earlier_versions_do_not_say_what_is_frozen(job: Job) -> None:
    for name in ("rank-0.pt", "rank-1.pt"):
        put(job, name, with_key(name, "frozen", KeyError)(job))
    run(job)


def swap(job: Job, one: Path, other: Path) -> None:
    """Exchange two files of checkpoints, and sign the first one's place anew."""
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    for path in (one, other):
        if path.parent == at(job):
            put(job, path.name, path.read_bytes())


def test_parts_of_two_ranks_that_were_exchanged_are_told_apart(job: Job) -> None:
    swap(job, at(job) / "rank-0.pt", at(job) / "rank-1.pt")
    part = r"the part of rank \d of checkpoint 2 of run \w+"
    told = f"{part} lies where {part} belongs"
    with pytest.raises(InvalidCheckpoint, match=told) as caught:
        run(job)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [MODEL, "rank-0.pt"])
def test_a_part_of_the_checkpoint_before_is_told_apart(made: tuple[Job, Path], job: Job, name: str) -> None:
    before = made[1].with_name("000001") / name
    put(job, name, before.read_bytes())
    with pytest.raises(
        InvalidCheckpoint, match=r"of checkpoint 1 of run \w+ lies where .* of checkpoint 2 of run \w+ belongs"
    ):
        run(job)


def test_a_part_of_the_same_checkpoint_of_another_run_is_told_apart(job: Job, tmp_path: Path) -> None:
    again = replace(job, resume=None, checkpoint_folder=tmp_path / "other", run="", **EVERY)
    run(again)
    put(job, "rank-0.pt", (tmp_path / "other" / at(job).name / "rank-0.pt").read_bytes())
    with pytest.raises(InvalidCheckpoint, match="the part of rank 0 of checkpoint 2 of run"):
        run(job)


def test_other_data_than_before_are_refused_between_two_epochs_too(job: Job) -> None:
    def at_an_epochs_end(body: Any) -> Any:
        body["books"]["begun"] -= len(body["books"]["ledgers"])
        body["books"]["ledgers"] = []
        return body

    change(job, at_an_epochs_end)
    with pytest.raises(InvalidCheckpoint, match="of 203 training samples, there are 150 now"):
        run(replace(job, task=partial(toy.task, samples=150)))


@pytest.mark.parametrize(("members", "ranks", "absent"), [((0, 1), 2, 0), ((0,), 2, 1), ((0, 1), 3, 1)])
def test_ranks_that_had_joined_are_not_absent(job: Job, members: tuple[int, ...], ranks: int, absent: int) -> None:
    checkpoint = read(at(job))
    checkpoint = replace(checkpoint, manifest=replace(checkpoint.manifest, members=members))
    assert checkpoint.absent(replace(job, world_size=ranks, absent=1)) == absent


def test_every_part_is_as_it_was_written(job: Job) -> None:
    for name in (MODEL, "rank-0.pt", "rank-1.pt"):
        original = (at(job) / name).read_bytes()
        for where in range(0, len(original), len(original) // 20):
            content = bytearray(original)
            content[where] ^= 1
            (at(job) / name).write_bytes(content)
            with pytest.raises(InvalidCheckpoint, match=f"{at(job) / name}: torn, its content is not what was written"):
                read(at(job))
        (at(job) / name).write_bytes(original)
    assert read(at(job))


def test_a_rank_hashes_the_parts_that_it_reads(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has hashed all before any rank starts. States of another number of ranks are read by all."""
    hashed: list[str] = []
    of_file = checkpoint._sha256
    monkeypatch.setattr(checkpoint, "_sha256", lambda path: hashed.append(path.name) or of_file(path))
    for resumed, rank, parts in (
        (job, 1, ["rank-1.pt"]),
        (job, None, ["rank-0.pt", "rank-1.pt"]),
        (replace(job, world_size=3), 2, ["rank-0.pt", "rank-1.pt"]),
    ):
        hashed.clear()
        assert resume(resumed, rank)
        assert sorted(hashed) == sorted([MODEL, *parts])
