"""What a rank writes down of its memory: of its GPU only where it has one, and in the form that the codec reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp.core.events import Memory
from ddp.runtime.codec import decode
from ddp.runtime.meter import Meter


@pytest.mark.parametrize(("kind", "expected"), [("cpu", None), ("cuda", 12345)])
def test_memory_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, expected: int | None) -> None:
    device: Any = SimpleNamespace(type=kind)
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: asked.append(device) or 12345)
    Meter(2, tmp_path, device).flush()
    (line,) = (tmp_path / "slices-2.jsonl").read_bytes().splitlines()
    held = decode(line)
    assert isinstance(held, Memory)
    assert (held.rank, held.device_bytes) == (2, expected)
    assert held.rss_bytes > 1_000_000
    assert asked == [device] * (kind == "cuda")
