"""Parts of a report of chosen numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures: they take the time."""
    monkeypatch.setattr(report.page, "FIGURES", 0)


def part(path: Path, name: str) -> str:
    return path.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
