"""What a rank writes down of its memory: of its GPU only where it has one, and in the form that the codec reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp.core.events import Memory
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
