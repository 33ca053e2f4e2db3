"""Checkpoints that are not what they claim, though their sums match: one line, no code run, nothing lost."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddp.checkpoint import checkpoint
from ddp.checkpoint.checkpoint import MANIFEST, MODEL, InvalidCheckpoint, find, read, resume
from ddp.core.policies.windows import WindowState
from ddp.core.settings.averaging import Averaging
from ddp.replica.task import Job
from tests.edits import edited
from tests.runtime.checkpoints.kept_job import at, change, put
from tests.runtime.checkpoints.kept_job import job as job
from tests.runtime.checkpoints.kept_job import made as made

pytestmark = pytest.mark.usefixtures("in_process")


LEDGER = ("books", "ledgers", 0)

STATE, PLAN = ("books", "policy_state"), ("books", "plan")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("version",), 2),
        (("version",), "3"),
        (("identity", "world_size"), "two"),
        (("identity",), KeyError),
        (("index",), -1),
        (("index",), 10**9),
        (("index",), 2**64 - 1),
        (("members",), []),
        (("members",), [0, 0, 1]),
        (("members",), [-1, 0]),
        (("members",), [0, 7]),
        (("files",), [["../../secret", 3, "ab"]]),
        (("files",), []),
        (("books", "begun"), -1),
        (("books", "begun"), 4),
        (("books", "epoch_samples"), 0),
        (("books", "epoch_samples"), 2**63),
        (("books", "rounds"), -5),
        (("books", "rounds"), 2**62),
        (("books", "saves"), 0),
        (("books", "ledgers"), KeyError),
        ((*LEDGER, "merged"), [[-8, 16]]),
        ((*LEDGER, "merged"), [[16, 8]]),
        ((*LEDGER, "merged"), [[0, 16], [8, 24]]),
        ((*LEDGER, "merged"), [[0, 10**9]]),
        ((*LEDGER, "merged"), [[0, "8"]]),
        ((*LEDGER, "returned"), [[0, 203]]),
        ((*LEDGER, "pools"), [[0, 203]]),
        ((*LEDGER, "pools"), [[0, 0]] * 5),
        ((*LEDGER, "samples"), 10),
        ((*LEDGER, "epoch"), 99),
        ((*LEDGER, "epoch"), -1),
        (PLAN, None),
        ((*PLAN, "counts"), [3]),
        ((*PLAN, "counts"), [0, 0]),
        ((*PLAN, "counts"), [3, -3]),
        ((*PLAN, "ahead"), [-1, 0]),
        ((*PLAN, "weights"), [float("nan"), 0.5]),
        ((*PLAN, "weights"), [1.0]),
        ((*PLAN, "in_step"), True),
        ((*PLAN, "dispatch"), "nonsense"),
        ((*PLAN, "lookahead"), 10**6),
        (STATE, None),
        (STATE, "x"),
        (STATE, {}),
        ((*STATE, "guard"), ["a", "b", "c", "d", "e"]),
        ((*STATE, "guard"), {"last": 3}),
        ((*STATE, "elche", "speeds"), []),
        ((*STATE, "elche", "speeds", 0, "step_s"), float("nan")),
        ((*STATE, "elche", "speeds", 0, "step_s"), float("inf")),
        ((*STATE, "elche", "costs"), [float("-inf")]),
        ((*STATE, "elche", "counts"), [1, 2, 3]),
        ((*STATE, "elche", "rank"), 17),
        ((*STATE, "elche", "anchor"), 10**15),
    ],
    ids=str,
)
def test_books_that_cannot_be_are_refused_before_anything_starts(job: Job, keys: tuple[Any, ...], value: Any) -> None:
    change(job, lambda body: edited(body, keys, value))
    with pytest.raises(InvalidCheckpoint) as caught:
        resume(job)
    assert "\n" not in str(caught.value)
    assert str(at(job)) in str(caught.value)


@pytest.mark.parametrize(
    ("averaging", "said"),
    [
        (Averaging(gamma=0.5), "of a run with gamma=1.0, this one has 0.5"),
        (Averaging(elastic=0.5), "of a run with elastic=None, this one has 0.5"),
        (Averaging(wire="bfloat16"), "of a run with wire=float64, this one has bfloat16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_way_to_average_is_no_way_to_go_on(job: Job, averaging: Averaging, said: str) -> None:
    assert resume(job) is not None
    with pytest.raises(ValueError, match=said):
        resume(replace(job, averaging=averaging))


def test_a_ledger_twice_is_refused(job: Job) -> None:
    change(job, lambda body: edited(body, ("books", "ledgers"), body["books"]["ledgers"] * 2))
    with pytest.raises(InvalidCheckpoint, match="contradicts itself"):
        read(at(job))


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"[" * 10, b"\x91" * 200_000, bytes(range(256)) * 4], ids=lambda b: len(b)
)
def test_books_that_are_none_are_refused(job: Job, content: bytes) -> None:
    (at(job) / MANIFEST).write_bytes(content)
    with pytest.raises(InvalidCheckpoint, match="not the manifest of a checkpoint"):
        read(at(job))


def test_what_is_no_file_is_refused_without_waiting_for_it(job: Job, tmp_path: Path) -> None:
    books, model, aside = at(job) / MANIFEST, at(job) / MODEL, tmp_path / "aside"
    for path in (books, model):
        path.rename(aside)
        os.mkfifo(path)  # whose reader waits for ever
        with pytest.raises(InvalidCheckpoint, match="not a file"):
            read(at(job))
        path.unlink()
        path.symlink_to("/dev/zero")  # which has no end
        with pytest.raises(InvalidCheckpoint, match="not a file"):
            read(at(job))
        path.unlink()
        path.symlink_to(path)
        with pytest.raises(InvalidCheckpoint, match=path.name):
            read(at(job))
        path.unlink()
        with pytest.raises(InvalidCheckpoint, match=path.name):
            read(at(job))
        aside.rename(path)
    with books.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(InvalidCheckpoint, match="too large"):
        read(at(job))


def test_a_symlink_to_a_whole_one_is_as_good(job: Job, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "000009").symlink_to(at(job))
    found, problems = find(tmp_path / "links")
    assert found is not None
    assert problems == []
    (tmp_path / "empty" / "000003").mkdir(parents=True)
    (tmp_path / "empty" / "000004").symlink_to("nowhere")
    assert find(tmp_path / "empty")[0] is None


def test_nothing_that_is_edited_gets_through(job: Job) -> None:
    """The file that the edits above are made to is whole without them."""
    change(job, lambda body: body)
    put(job, MODEL, torch.load(at(job) / MODEL, weights_only=True))
    held = resume(job)
    assert held is not None
    assert isinstance(held.coordinator.policy_state, WindowState)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_byte_of_the_books_brings_anything_but_a_refusal(job: Job, data: st.DataObject) -> None:
    original = (at(job) / MANIFEST).read_bytes()
    books = checkpoint.unbound(original)
    content = bytearray(books or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                content[where] = data.draw(st.integers(0, 255))
            case "cut":
                del content[where : where + data.draw(st.integers(1, 4))]
            case "insert":
                content[where:where] = data.draw(st.binary(min_size=1, max_size=9))
    (at(job) / MANIFEST).write_bytes(checkpoint.bound(bytes(content)))
    try:
        with suppress(ValueError):  # and nothing else
            resume(job)
        if content != books:
            (at(job) / MANIFEST).write_bytes(bytes(content) + original[-32:])
            with pytest.raises(InvalidCheckpoint, match=str(at(job))):
                read(at(job))
    finally:
        (at(job) / MANIFEST).write_bytes(original)


def test_books_without_a_digest_are_of_an_earlier_version(job: Job) -> None:
    books = checkpoint.unbound((at(job) / MANIFEST).read_bytes())
    assert books is not None
    (at(job) / MANIFEST).write_bytes(books)
    with pytest.raises(InvalidCheckpoint, match="not what was written"):
        read(at(job))
    (at(job) / MANIFEST).write_bytes(msgspec.msgpack.encode(msgspec.msgpack.decode(books) | {"version": 5}))
    assert read(at(job)).manifest.version == 5
