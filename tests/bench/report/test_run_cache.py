"""Values that reports keep of runs: verdicts are the same as judged anew, and nothing is kept of what has changed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.base.paths import BASELINES
from bench.report import judged, run_cache
from bench.results.cells import Cell, cells
from bench.results.runfolder import CONFIG, EVENTS, LOG, METRICS, Run, find_runs
from bench.validate import Verdict, judge
from bench.validate.evidence import derivation
from bench.validate.evidence.derivation import Derivation
from bench.validate.records import reading
from bench.validate.records.run_records import Records
from tests.bench.streams import make_spec, write_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return run_cache.folder()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for mode in ("solo", "nccl_sync", "nccl_cadence"):
        for seed in (0, 1):
            write_run(tmp_path / "runs", make_spec(mode, seed=seed))
    return tmp_path / "runs"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs whose records were read."""
    paths: list[Path] = []
    whole, own = reading.reading, derivation.legible

    def watched(run: Run) -> Any:
        paths.append(run.path)
        return whole(run)

    def legible(run: Run) -> None:
        paths.append(run.path)
        own(run)

    monkeypatch.setattr(reading, "reading", watched)
    monkeypatch.setattr(derivation, "legible", legible)
    return paths


def grouped(root: Path) -> Sequence[Cell]:
    return cells(find_runs(root)[0])


def asked(root: Path) -> list[Verdict]:
    return judged(grouped(root), [], BASELINES).verdicts


def test_what_is_kept_is_what_was_judged(home: Path, root: Path, read: list[Path]) -> None:
    anew = judge([root], BASELINES).verdicts
    assert {verdict.check for verdict in anew} > {"breakdown", "idle", "ledger"}
    assert asked(root) == anew
    assert len(list(home.iterdir())) == 6
    read.clear()
    assert asked(root) == anew
    assert not read


def test_a_new_run_costs_one_run(home: Path, root: Path, read: list[Path]) -> None:
    asked(root)
    read.clear()
    folder = write_run(root, make_spec("nccl_sync", seed=2))
    assert asked(root) == judge([root], BASELINES).verdicts
    read.clear()
    another = write_run(root, make_spec("solo", seed=2))
    asked(root)
    assert set(read) == {another}
    assert len(list(home.iterdir())) == 8
    assert folder.is_dir()


@pytest.mark.parametrize("name", [EVENTS, METRICS, CONFIG])
def test_nothing_is_kept_of_what_has_changed(home: Path, root: Path, name: str) -> None:
    """Every edit gives the verdicts of a judgement without a cache; what was put back gives those of before."""
    before, draw = asked(root), random.Random(0)
    path = sorted(root.rglob(name))[0]
    body = path.read_bytes()
    for place in draw.sample(range(len(body)), min(len(body), 25)):
        sign = draw.choice([sign for sign in b"0123456789ae{},\n" if sign != body[place]])
        path.write_bytes(body[:place] + bytes([sign]) + body[place + 1 :])
        kept, anew = outcome(root, True), outcome(root, False)
        assert kept == anew, f"byte {place}: {chr(sign)}"
    path.write_bytes(body)
    assert asked(root) == before


def outcome(root: Path, cache: bool) -> list[str]:
    runs, problems = find_runs(root)
    named = [(root.name, line) for line in problems]
    verdicts = judged(cells(runs), named, BASELINES).verdicts if cache else judge([root], BASELINES).verdicts
    return sorted(map(str, verdicts))


def test_an_edited_record_is_refused_although_its_run_was_sound(home: Path, root: Path) -> None:
    assert all(verdict.check != "readable" for verdict in asked(root))
    path = sorted(root.rglob(EVENTS))[0]
    path.write_bytes(path.read_bytes().replace(b'"rank":0', b'"rank":1', 1))
    for _ in range(2):  # a refusal is not kept
        (refused,) = [verdict for verdict in asked(root) if verdict.check == "readable"]
        assert (refused.name, str(path) in refused.line) == ("REFUSED", True)


def test_a_damaged_file_is_derived_anew_and_validation_asks_for_none(home: Path, root: Path) -> None:
    before = asked(root)
    for file in home.iterdir():
        file.write_bytes(b"\x91nonsense")
    assert asked(root) == before
    for file in home.iterdir():
        values = run_cache._decoder.decode(file.read_bytes())
        wrong = {name: "other" if isinstance(value, str) else value for name, value in values.items()}
        file.write_bytes(run_cache._encoder.encode(wrong))
    assert asked(root) != before
    assert judge([root], BASELINES).verdicts == before


def test_other_source_derives_anew(home: Path, root: Path, monkeypatch: pytest.MonkeyPatch, read: list[Path]) -> None:
    before = asked(root)
    read.clear()
    monkeypatch.setattr(run_cache, "_code", lambda: "of another version")
    assert asked(root) == before
    assert len(set(read)) == 6


def test_the_log_is_no_part_of_it(home: Path, root: Path, read: list[Path]) -> None:
    """The verdict is added to it after the report was written."""
    asked(root)
    read.clear()
    for folder in {path.parent for path in root.rglob(METRICS)}:
        (folder / LOG).write_text("verdict")
    asked(root)
    assert not read


def steps(run: Run, known: Records) -> int:
    return len(known.progress)


def test_values_of_a_users_check_are_not_kept(home: Path, root: Path) -> None:
    (run, *_) = find_runs(root)[0]
    with run_cache.cached() as known:
        assert known.value(steps, run) == Derivation().value(steps, run)
    assert not home.exists()


def test_with_members_of_a_package_nothing_is_kept(home: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "extended", lambda: True)
    assert asked(root) == judge([root], BASELINES).verdicts
    assert not home.exists()


def test_the_oldest_are_removed(home: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "MOST", 2)
    asked(root)
    assert len(list(home.iterdir())) == 2
