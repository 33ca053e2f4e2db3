"""What a person sees in a terminal of a hundred columns, while a run or a sweep lasts and when it is over."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.base.console import VERBOSITY, WIDTH, cut, verbosity
from bench.command.printed.run_lines import Line, result_lines, shortened, sweep_notes, sweep_table, trouble_lines
from bench.command.sweeps.sweep_progress import SweepProgress
from bench.command.verbs.explain_command import table
from bench.results.analysis.explained import causes_of
from bench.results.cells import cells
from bench.results.live.run import RunFigures
from bench.results.runfolder import LOG, Run, find_runs
from bench.results.schema import RankTime
from bench.runner.live_view import duration, epoch_line, rank_lines, run_line
from ddp.core.messages.commands import Evaluate
from ddp.core.messages.events import Evaluated, Progress, Ready
from ddp.process.codec import Record
from tests.bench.command.terminals import Terminal, terminal
from tests.bench.conftest import Bench
from tests.bench.streams import make_metrics, make_spec
from tests.warm import Warm

LINES = 12
CELL = ("model=mlp", "data.name=digits", "world_size=2", "train.epochs=2")
SWEEP = ("-m", "model=mlp", "mode=nccl_sync,cpu_async", "world_size=2", "seed=0,1", "train.epochs=2", "report=false")


@contextmanager
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal of a hundred columns that this process prints on."""
    with monkeypatch.context() as patch, terminal(WIDTH) as seen:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(WIDTH))
        with os.fdopen(os.dup(seen.stdout), "w", buffering=1) as stdout:
            patch.setattr(sys, "stdout", stdout)
            yield seen


def test_a_run_is_one_line_that_changes_and_ends_in_twelve(warm: Warm, tmp_path: Path) -> None:
    environment = {"TERM": "xterm", "COLUMNS": str(WIDTH), "WARM_PICTURES": "none"}
    with terminal(WIDTH) as seen:
        process = warm.start(
            tmp_path, "-m", "bench", "mode=nccl_sync", *CELL, "audit=false", env=environment, stdout=seen.stdout
        )
        code, _, err = process.result(120)
    assert (code, err) == (0, "")
    begin = next(row for row, line in enumerate(seen.left) if line.startswith("accuracy"))
    end = seen.left[begin:]
    assert len(end) <= LINES - 1, "and an empty one"
    assert max(map(len, seen.left)) <= WIDTH
    assert [line.split()[0] for line in end if line[0] != " "][:3] == ["accuracy", "speed", "time"]
    assert "computing" in end[3]
    assert not any("epoch 1/2" in line for line in seen.left), "which the live line had"
    assert any(
        re.search(r"mlp nccl_sync seed 0  epoch 1/2  loss .*samples/s  \d:\d\d left", line) for line in seen.live
    )
    (run,) = find_runs(tmp_path / "runs")[0]
    log = (run.path / LOG).read_text()
    for words in ("epoch 1/2", "epoch 2/2", "rank 0", "rank 1", *end[:3], *end[4:]):
        assert words in log


def test_a_sweep_has_one_bar_and_means_over_seeds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch) as seen:
        bench(*SWEEP)
    text = seen.live
    assert max(map(len, seen.left)) <= WIDTH
    for place in ("cell 1 of 2, run 1 of 4", "cell 1 of 2, run 2 of 4", "cell 2 of 2, run 3 of 4"):
        assert any(f"sweep: {place}" in line for line in text), place
    assert not any("sweep: " in line for line in seen.left)
    first = next(row for row, line in enumerate(seen.left) if line.startswith("cell "))
    table = seen.left[first + 2 : first + 4]
    assert [line.split()[:4] for line in table] == [["mlp", mode, "×2", "2"] for mode in ("cpu_async", "nccl_sync")]
    assert len(seen.left[first:]) <= LINES
    assert sum("seed 0" in line for line in seen.left[:first]) == 2, "a line for each run"
    for run in find_runs(Path("runs"))[0]:
        log = (run.path / LOG).read_text()
        assert "\nverdict   " in log
        assert f"\nresults   {run.path}" in log


def test_ranks_are_shown_when_they_are_asked_for(quiet: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERBOSITY, "1")
    with screen(monkeypatch) as seen:
        quiet("model=mlp", "mode=solo", "train.epochs=2")
    for words in ("epoch 1/2", "epoch 2/2", "rank 0"):
        assert any(line.lstrip().startswith(words) for line in seen.left)


def test_how_much_is_printed_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, number in (("", 0), ("-1", -1), ("2", 2), ("9", 3), ("much", 0)):
        monkeypatch.setenv(VERBOSITY, text)
        assert verbosity() == number


def test_an_epochs_speed_is_the_epochs() -> None:
    """It was that of the run so far, evaluation and all."""
    spec = replace(make_spec("solo"), epochs=2)
    run, last = RunFigures(2), None
    lines: list[str] = []
    records: list[Record] = [Ready(0.0, 0, 100, 10, "d", "cpu", "none")]
    for epoch, (ready, seconds) in enumerate(((0.0, 1.0), (6.0, 4.0))):
        records.append(Progress(ready + seconds, 0, epoch, 1, 100, seconds, 1.0, 0.1))
        records.append(Evaluated(ready + seconds + 5.0, 0, epoch, 10, 5.0, 8.0, 5.0))
    for record in records:
        for done in run.add(record):
            lines.append(epoch_line(spec, run, done, last))
            last = done
    assert [line.split("  ")[-1] for line in lines] == ["100 samples/s", "25 samples/s"]


def test_what_ranks_trained_ahead_counts_when_it_was_trained() -> None:
    """One of them was in the second epoch already when the first was evaluated, which lowered its speed."""
    spec, run = replace(make_spec("cpu_async"), epochs=2), RunFigures(2)
    records: list[Record] = [Ready(0.0, rank, 100, 10, "d", "cpu", "memory") for rank in (0, 1)]
    for second in range(1, 11):  # 20 samples/s each, rank 1 from the fourth second on in the second epoch
        for rank in (0, 1):
            epoch = int(second > (5, 3)[rank])
            records.append(Progress(float(second), rank, epoch, 1, 20, 1.0, 20.0, 0.1))
        if second in (5, 10):
            records += [
                Evaluate(0, second // 10, 0, 1, True, ""),
                Evaluated(float(second), 0, second // 10, 10, 5.0, 8.0, 0.0),
            ]
    ended = [done for record in records for done in run.add(record)]
    lines = [epoch_line(spec, run, done, last) for last, done in pairwise([None, *ended]) if done]
    assert [line.split("  ")[-1] for line in lines] == ["40 samples/s", "40 samples/s"]


def test_an_epoch_without_samples_since_the_last_one_has_no_speed() -> None:
    spec, run = replace(make_spec("cpu_async"), epochs=2), RunFigures(2)
    records: list[Record] = [Ready(0.0, 0, 100, 10, "d", "cpu", "memory"), Ready(0.0, 1, 100, 10, "d", "cpu", "memory")]
    for epoch in (0, 1):
        records += [Progress(2.0, 0, epoch, 1, 20, 1.0, 20.0, 0.1)]
    for epoch in (0, 1):
        records += [Evaluate(0, epoch, 0, 1, True, ""), Evaluated(3.0 + epoch, 0, epoch, 10, 5.0, 8.0, 0.0)]
    ended = [done for record in records for done in run.add(record)]
    assert epoch_line(spec, run, ended[1], ended[0]).split("  ")[-1] == "- samples/s"


@pytest.mark.parametrize(("samples", "shown"), [(0, False), (10, True)])
def test_a_run_without_a_test_set_shows_no_metric(samples: int, shown: bool) -> None:
    """It was `metric nan`, in each epoch."""
    spec, run = replace(make_spec("solo"), epochs=1), RunFigures(1)
    records: list[Record] = [Ready(0.0, 0, 100, 10, "d", "cpu", "none"), Progress(2.0, 0, 0, 1, 20, 1.0, 20.0, 0.1)]
    records.append(Evaluated(3.0, 0, 0, samples, 0.5 * samples, 0.8 * samples, 0.0))
    (ended,) = (done for record in records for done in run.add(record))
    for line in (epoch_line(spec, run, ended, None), run_line(spec, run, ended, 4.0)):
        assert "loss 1.0000" in line
        assert (f"{spec.metric} 0.8000" in line) is shown
        assert "nan" not in line


def test_the_time_left_follows_from_what_is_trained() -> None:
    spec = replace(make_spec("solo"), epochs=4)
    run = RunFigures(4)
    run.add(Ready(0.0, 0, 100, 10, "d", "cpu", "none"))
    assert (run.time_left(spec.epochs), "starting" in run_line(spec, run, None, 1.0)) == (None, False)
    run.add(Progress(10.0, 0, 0, 1, 100, 1.0, 1.0, 0.1))
    assert run.time_left(spec.epochs) == 30.0
    assert run_line(spec, run, None, 10.0).endswith("10 samples/s  0:30 left")
    assert rank_lines(spec, run)[0].startswith("  rank 0  epoch 1  100 samples  10 samples/s  at work 10%")
    run.add(Progress(20.0, 0, 0, 1, 100, 1.0, 1.0, 0.1))
    assert run.time_left(0) is None, "how many epochs there will be is not known"
    assert run.time_left(spec.epochs) == 30.0, "it trains what a lost rank threw away: once more the first epoch"
    assert [duration(seconds) for seconds in (7, 750, 11099)] == ["0:07", "12:30", "3:04:59"]


def test_what_a_sweep_has_left_is_reckoned_from_the_runs_that_are_over() -> None:
    now = [0.0]
    sweep = SweepProgress(lambda: now[0])
    for mode in ("a", "b"):
        for seed in (0, 1, 2):
            sweep.foresee((f"mode={mode}", f"seed={seed}"))
    sweep.begin()
    assert sweep.left(None) is None
    now[0] = 4.0
    assert sweep.left(6.0) == 6.0 + 5 * 10.0, "as the first one promises"
    now[0] = 8.0
    sweep.end(trained=True)
    sweep.begin()
    sweep.end(trained=False)
    sweep.begin()
    assert sweep.place == "cell 1 of 2, run 3 of 6"
    assert sweep.left(None) == 8.0 + 3 * 0.5 * 8.0, "half of those before were skipped"


def test_what_is_too_much_is_counted_and_cut() -> None:
    lines = [Line("note", str(number)) for number in range(5)]
    assert shortened(lines, 2) == [lines[0], Line("note", "4 more such lines are in training.log")]
    assert shortened(lines[:2], 2) == lines[:2]
    assert cut("a" * 200) == "a" * (WIDTH - 1) + "…"


def test_the_cell_that_other_programs_disturbed_is_named() -> None:
    note = "other programs used 1.2 of 2 cores during the run: its speeds are too low"
    runs = []
    for seed in (0, 1, 2):
        spec = make_spec("nccl_sync", seed=seed)
        metrics = make_metrics(spec).model_copy(update={"warnings": [note] if seed == 1 else []})
        runs.append(Run(Path("runs") / spec.run_id, metrics))
    grouped = cells(runs)
    what = "other programs used 1.2 of 2 cores; its speeds read too low"
    assert [str(line) for line in sweep_notes(grouped)] == [f"disturbed {grouped[0].name}, seed 1: {what}"]
    both = cells([replace(run, metrics=run.metrics.model_copy(update={"warnings": [note]})) for run in runs[:2]])
    assert str(sweep_notes(both)[0]) == f"disturbed {both[0].name}, seeds 0, 1: {what}"
    assert [line.text for line in trouble_lines(runs[1].metrics)] == [note]
    row = sweep_table(grouped).splitlines()[2].split()
    assert row[:6] == [*grouped[0].name.split(), "3", "3", "ok"]


def test_the_time_between_steps_has_one_name() -> None:
    """It was `other` in training.log and in explain."""
    spent = RankTime(compute=0.5, data=0.1, comm=0, wait=0, eval=0, checkpoint=0, absent=0, other=0.4)
    m = make_metrics(make_spec("solo")).model_copy(update={"breakdown": [spent]})
    for detail in (True, False):
        assert "between steps 40%" in str(result_lines(m, detail)[-1])
    run = causes_of([{"computing": 6.0, "other": 4.0}], 10.0, 100)
    assert [line.split(" | ")[1] for line in table(run)[-2:]] == ["computing", "between steps"]
