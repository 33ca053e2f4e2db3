"""A scheduler of tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.command.sweeps import submitted
from bench.config.launch_settings import Settings


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[str]]]:
    """What comes to a scheduler that takes all and ends nothing: the words of each cell, by the place of its run."""
    taken: list[dict[str, list[str]]] = []

    def submit(output: Path, left: dict[str, list[str]], settings: Settings) -> int:
        submitted.note(submitted.new_folder(output, "slurm"), f"{len(taken)}", left, 1)
        taken.append(left)
        return 0

    own = SimpleNamespace(demand=lambda: None, submit=submit, live=lambda folder: True, standing=lambda folder: "")
    monkeypatch.setattr(submitted, "module", lambda name: own)
    return taken
