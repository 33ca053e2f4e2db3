"""A run folder that may not be entered is named and counted by everybody, never left out without a word."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench as api
from bench.dashboard.board import LIVE, ROW, whole
from bench.results.runfolder import Shut, find_runs, finished
from bench.results.writer import RunWriter
from bench.validate.baselines.folder import load
from tests.bench.conftest import Bench
from tests.bench.references import baselines
from tests.bench.streams import make_spec, write_run
from tests.held_back import held_back

SHUT = "Permission denied"


@pytest.fixture
def shut(tmp_path: Path) -> Iterator[Path]:
    """One of three seeds in `tmp_path / "runs"`, shut."""
    for seed in range(3):
        folder = write_run(tmp_path / "runs", make_spec(seed=seed))
    folder.chmod(0)
    with held_back():
        yield folder
    folder.chmod(0o755)


@pytest.mark.parametrize("mode", [0, 0o444], ids=["shut", "listed, not entered"])
def test_it_is_named(shut: Path, tmp_path: Path, mode: int) -> None:
    shut.chmod(mode)
    runs, problems = find_runs(tmp_path / "runs")
    assert len(runs) == 2
    assert len(problems) == 1
    assert problems[0].startswith(str(shut))
    assert problems[0].endswith(SHUT)
    with pytest.raises(Shut, match="cannot be told"):
        finished(tmp_path / "runs", *shut.parts[-3:])


def test_a_tree_that_may_not_be_entered_is_no_empty_one(shut: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").chmod(0)
    try:
        assert find_runs(tmp_path / "runs") == ([], [f"{tmp_path / 'runs'}: {SHUT}"])
    finally:
        (tmp_path / "runs").chmod(0o755)


def test_every_command_says_so(bench: Bench, shut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = f"runs/mlp/nccl_cadence/{shut.name}: {SHUT}"

    def told(*words: str, code: int) -> str:
        assert bench(*words) == code
        said = capsys.readouterr()
        return said.out + said.err

    assert f"REFUSED        runs  readable: {named}" in told("validate", "runs", code=4)
    assert named in told("baseline", "propose", "runs", code=2)
    assert f"left out: {named}" in told("report", "runs", code=0)
    report = Path("reports/runs/report.md")
    assert "**1 folder could not be read.**" in report.read_text()
    told("report", f"runs/mlp/nccl_cadence/{make_spec(seed=0).run_id}", "--previous", "runs", "--out", "new", code=0)
    assert "of the earlier tree" in Path("new/report.md").read_text()
    assert shut.name in Path("new/report.md").read_text()
    assert SHUT in told("timeline", str(shut), code=2)
    assert SHUT in told("rerun", str(shut), code=2)
    assert SHUT in told("replay", str(shut), code=2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert len(api.load("runs")) == 2
    assert [str(one.message) for one in warned] == [f"left out: {named}"]


def test_the_dashboard_has_a_row_for_it(shut: Path, tmp_path: Path) -> None:
    pieces = whole(tmp_path / "runs")
    (row,) = [p.text for p in pieces if p.kind == ROW and shut.name in p.key]
    assert str(shut) in row
    assert SHUT in row
    assert len([piece for piece in pieces if piece.kind == LIVE]) == 3


def test_a_sweep_does_not_take_it_for_unfinished(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-m", "model=mlp", "mode=solo", "seed=0,1", "train.epochs=1", "report=false", "validate=false")
    assert bench(*words) == 0
    folder = sorted(Path("runs/mlp/solo").iterdir())[1]
    capsys.readouterr()
    folder.chmod(0)
    try:
        with held_back():
            assert bench("plan", *words) == 2
            planned = capsys.readouterr().out
            assert bench(*words) == 2
    finally:
        folder.chmod(0o755)
    assert f"impossible: {folder}" in planned
    assert "cannot be told" in capsys.readouterr().err
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_a_failed_run_does_not_replace_what_may_be_finished(tmp_path: Path) -> None:
    folder = write_run(tmp_path, spec := make_spec())
    folder.chmod(0)
    try:
        with held_back():
            beside = RunWriter(tmp_path, spec.model, spec.mode, spec.run_id).commit("failed")
    finally:
        folder.chmod(0o755)
    assert beside.name == f"{folder.name}.failed"
    assert (folder / "metrics.json").is_file()


def test_baselines_that_may_not_be_entered_are_named(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    folder = base / "mlp-digits-quick"
    folder.chmod(0)
    try:
        with held_back():
            library = load(base)
    finally:
        folder.chmod(0o755)
    assert library.references == ()
    assert library.broken == (f"{folder}: {SHUT}",)


def test_an_audit_says_which_runs_it_does_not_know(
    bench: Bench, shut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = baselines(tmp_path / "base")
    assert bench("baseline", "audit", str(base), "--runs", "runs") == 4
    assert (
        f"left out, so what it uses is not known: runs/mlp/nccl_cadence/{shut.name}: {SHUT}" in capsys.readouterr().out
    )


def test_a_process_makes_a_run_once_at_a_time(tmp_path: Path) -> None:
    """As by two Trainers of one name and seed in a script."""
    cell = (tmp_path, "touch", "solo", "w1-s0-0123abcd")
    first = RunWriter(*cell)
    (first.path / "events.jsonl").touch()
    with pytest.raises(ValueError, match="in the making by this process already: wait for that run"):
        RunWriter(*cell)
    assert (first.path / "events.jsonl").exists()
    first.commit("failed")
    RunWriter(*cell).discard()
