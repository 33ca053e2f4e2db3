"""Verdicts that a report keeps: the same as judged anew, and none of what has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.base.paths import BASELINES
from bench.report import verdict_cache
from bench.results.cells import Cell, cells
from bench.results.runfolder import EVENTS, find_runs
from bench.validate import Verdict, judge, judge_cells
from tests.bench.streams import make_spec, write_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return verdict_cache.folder()


def grouped(root: Path) -> Sequence[Cell]:
    return cells(find_runs(root)[0])


def asked(root: Path) -> list[Verdict]:
    return verdict_cache.verdicts(grouped(root), [], BASELINES)


def never(*_: object) -> None:
    raise AssertionError("judged anew")


def test_what_is_kept_is_what_was_judged(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    for mode in ("solo", "nccl_sync"):
        write_run(root, make_spec(mode))
    anew = judge_cells(grouped(root), [], BASELINES).verdicts
    assert anew
    assert asked(root) == anew
    assert len(list(home.iterdir())) == 1
    monkeypatch.setattr(verdict_cache, "judge_cells", never)
    assert asked(root) == anew


def test_nothing_is_kept_of_what_has_changed(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = write_run(root, make_spec("solo"))
    before = asked(root)
    assert all(verdict.check != "readable" for verdict in before)
    events = folder / EVENTS
    body = events.read_bytes()
    events.write_bytes(body.replace(b'"rank":0', b'"rank":1', 1))
    changed = asked(root)
    assert [v.name for v in changed if v.check == "readable"] == ["REFUSED"]
    assert changed == judge([root], BASELINES).verdicts
    events.write_bytes(body)
    assert asked(root) == before


def test_a_damaged_file_is_judged_anew_and_validation_asks_for_none(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    write_run(root, make_spec("solo"))
    before = asked(root)
    (file,) = home.iterdir()
    file.write_bytes(b"\x91nonsense")
    assert asked(root) == before
    file.write_bytes(verdict_cache._encoder.encode([]))
    assert judge([root], BASELINES).verdicts == before


def test_the_oldest_are_removed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_cache, "MOST", 2)
    for seed in range(4):
        write_run(tmp_path / str(seed), make_spec("solo", seed=seed))
        asked(tmp_path / str(seed))
    assert len(list(home.iterdir())) == 2
