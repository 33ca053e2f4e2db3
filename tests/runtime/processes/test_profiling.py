"""A window of torch.profiler in a rank, without processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddp.process.clock import now
from ddp.process.operations import file_of, read
from ddp.process.profiling import WARM, Profiler


def test_the_steps_of_the_window_are_recorded_on_our_clock(tmp_path: Path) -> None:
    profiler = Profiler(3, 2, tmp_path)
    changed, spans = [], []
    for step in range(WARM + 4):
        changed.append(profiler.step())
        began = now()
        (torch.sinh if WARM <= step < WARM + 2 else torch.cosh)(torch.ones(500))
        spans.append((began, now()))
    assert not profiler.close()
    assert [step for step, each in enumerate(changed) if each] == [WARM, WARM + 2]
    found = [each for each in read(file_of(tmp_path, 3)) if each.name in ("aten::sinh", "aten::cosh")]
    assert [each.name for each in found] == ["aten::sinh"] * 2
    for each, (began, ended) in zip(found, spans[WARM : WARM + 2], strict=True):
        assert began - 1e-3 < each.at < each.at + each.seconds < ended + 1e-3


def test_a_run_that_ends_in_the_window_leaves_what_there_is(tmp_path: Path) -> None:
    profiler = Profiler(0, 50, tmp_path)
    for _ in range(WARM + 3):
        profiler.step()
        torch.sinh(torch.ones(500))
    assert profiler.close()
    assert sum(each.name == "aten::sinh" for each in read(file_of(tmp_path, 0))) == 3
    short = Profiler(1, 5, tmp_path)
    short.step()
    assert not short.close()
    assert not file_of(tmp_path, 1).exists()


def test_what_a_rank_left_torn_is_said(tmp_path: Path) -> None:
    file_of(tmp_path, 0).write_bytes(b'[["aten::add",1.0,')
    with pytest.raises(ValueError, match="not the operations of a rank"):
        read(file_of(tmp_path, 0))
