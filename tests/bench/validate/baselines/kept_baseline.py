"""A baseline of made-up runs, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.references import baselines


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return baselines(tmp_path)


def the_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.json")
    return path
