"""What a rank writes down of its memory: of its GPU only where it has one, and in the form that the codec reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.messages.events import Memory, Slice
from ddp.process.clock import core_pace, now
from ddp.process.codec import decode
from ddp.process.meter import Meter


def busy(device: object) -> int:
    return 37


def without_bindings(device: object) -> int:
    raise ModuleNotFoundError("pynvml does not seem to be installed or it can't be imported.")


@pytest.mark.parametrize(
    ("kind", "driver", "expected", "use"),
    [("cpu", busy, None, None), ("cuda", busy, 12345, 0.37), ("cuda", without_bindings, 12345, None)],
)
def test_memory_is_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    driver: Callable[[object], int],
    expected: int | None,
    use: float | None,
) -> None:
    device: Any = SimpleNamespace(type=kind)
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "utilization", driver)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: asked.append(device) or 12345)
    Meter(2, tmp_path, device).flush()
    (line,) = (tmp_path / "slices-2.jsonl").read_bytes().splitlines()
    held = decode(line)
    assert isinstance(held, Memory)
    assert (held.rank, held.device_bytes, held.device_use) == (2, expected, use)
    assert held.rss_bytes > 1_000_000
    assert asked == [device] * (kind == "cuda")


@pytest.mark.parametrize("before", [b'{"whole":1}\n{"type":"Sli', b'{"whole":1}\n', b'{"type":"Sli', b""])
def test_a_rank_that_is_started_again_appends_to_no_torn_line(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "slices-0.jsonl"
    path.write_bytes(before)
    meter = Meter(0, tmp_path, torch.device("cpu"))
    for _ in range(2):
        meter.add("forward", now())
        meter.flush()
    whole = b'{"whole":1}\n'
    kept = whole if whole in before else b""
    assert path.read_bytes().startswith(kept)
    records = [decode(line) for line in path.read_bytes().removeprefix(kept).splitlines()]
    assert sum(isinstance(record, Slice) for record in records) == 2


def test_where_the_time_of_steps_went(tmp_path: Path) -> None:
    """Computing without a core is time without one; emulated slowness and late batches are not."""
    meter = Meter(0, tmp_path, torch.device("cpu"))
    began = now()
    time.sleep(0.03)  # a late batch
    at = meter.add("data", began)
    meter.compute()
    while now() - at < 0.02:
        pass
    time.sleep(0.02)  # without a core
    meter.add("forward", at)
    meter.rest()
    at = now()
    time.sleep(0.05)
    meter.add("slowdown", at)
    work = meter.worked()
    assert work.data >= 0.03
    assert work.compute >= 0.09
    assert 0.019 < work.no_core < work.compute - 0.05
    assert work.no_core_data <= work.data
    assert meter.worked().compute == 0.0


def test_how_fast_the_core_is_is_measured_now_and_then_where_a_core_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, paces = [100.0], iter([1e-5, 3e-5, 5e-5])
    monkeypatch.setattr("ddp.process.meter.now", lambda: at[0])
    monkeypatch.setattr("ddp.process.meter.core_pace", lambda: next(paces))

    def seen(meter: Meter, *pauses: float) -> float:
        for pause in pauses:
            at[0] += pause
            meter.sample_core()
        return meter.worked().core

    gpu: Any = SimpleNamespace(type="cuda")
    assert seen(Meter(0, tmp_path, gpu), 0.0, 0.02) == 0.0
    meter = Meter(0, tmp_path, torch.device("cpu"))
    assert seen(meter, 0.0, 0.02, 0.01) == 2e-5, "the mean of two, as the third is too soon"
    assert seen(meter, 0.01) == 5e-5
    assert seen(meter) == 0.0


def test_the_pace_of_the_core_is_that_of_some_work() -> None:
    assert 1e-6 < core_pace() < 1e-2


def slices_of(path: Path) -> list[Slice]:
    pieces = [decode(line) for line in path.read_bytes().splitlines()]
    return [piece for piece in pieces if isinstance(piece, Slice)]


@given(st.lists(st.tuples(st.sampled_from(["add", "hidden", "flush", "pass"]), st.integers(0, 30)), max_size=40))
def test_slices_of_a_thread_never_overlap_and_leave_nothing_out(steps: list[tuple[str, int]]) -> None:
    """Whatever lies in what, and whenever slices are written out. What another thread is in changes none of them."""
    time = 0.0
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddp.process.meter.now", lambda: time)
        both, alone = (Meter(rank, Path(folder), torch.device("cpu")) for rank in range(2))
        for act, ago in steps:
            time += 1.0
            since = max(time - ago, 0.0)
            if act == "add":
                both.add("forward", since)
                alone.add("forward", since)
            elif act == "hidden":
                both.add_hidden(since, time, 1, 1)
            elif act == "flush":
                both.flush()
        both.flush()
        alone.flush()
        mine = sorted(
            (piece for piece in slices_of(Path(folder, "slices-0.jsonl")) if piece.kind != "hidden"),
            key=lambda piece: piece.at,
        )
        whole = sorted(slices_of(Path(folder, "slices-1.jsonl")), key=lambda piece: piece.at)
    assert all(first.at + first.seconds <= second.at for first, second in pairwise(mine))
    assert all(first.at + first.seconds <= second.at for first, second in pairwise(whole))
    if not any(act == "flush" for act, _ in steps):
        assert [(piece.at, piece.seconds) for piece in mine] == [(piece.at, piece.seconds) for piece in whole]


def test_a_forked_copy_writes_nothing(tmp_path: Path) -> None:
    """User code that forks and ends by `sys.exit` wrote its parent's slices, which then lay there twice."""
    meter = Meter(0, tmp_path, torch.device("cpu"))
    meter.add("forward", now())
    if not (child := os.fork()):
        try:
            meter.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not (tmp_path / "slices-0.jsonl").exists()
    meter.flush()
    assert sum(b'"Slice"' in line for line in (tmp_path / "slices-0.jsonl").read_bytes().splitlines()) == 1
