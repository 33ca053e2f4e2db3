"""The clocks of a run: its own, and the one that it is held against."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.results.journal import Journal
from bench.results.runfolder import EVENTS
from tests.bench.conftest import Bench

TOOK_S = 0.3


def test_both_clocks_end_before_records_are_merged(quiet: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many slices that takes more than a hundredth of the run."""
    merge = Journal.merge

    def slowly(self: Journal, *about: Any) -> Any:
        time.sleep(TOOK_S)
        return merge(self, *about)

    monkeypatch.setattr(Journal, "merge", slowly)
    assert quiet("model=mlp", "mode=solo", "train.epochs=2") == 0
    (path,) = Path("runs").glob(f"*/*/*/{EVENTS}")
    first, *_, last = map(json.loads, path.read_text().splitlines())
    if sys.platform == "linux":
        assert last["elapsed"] == pytest.approx(last["at"] - first["launched"], abs=TOOK_S / 2)
