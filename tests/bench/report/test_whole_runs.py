"""Figures of a cell come from the runs that have them: resumed, predicted and disturbed runs do not dilute them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.report import write_report
from bench.report.cell_changes import CellMove
from bench.report.measures.differences import factor
from bench.report.page_one.single_cell import tiles
from bench.report.page_one.words import arrival
from bench.report.sections import changes, target
from bench.results.cells import Cell, cells
from bench.results.runfolder import find_runs
from bench.results.schema import ResumedFrom
from tests.bench.report.test_answer import page
from tests.bench.report.test_page_claims import QUICK, changed, spoken
from tests.bench.report.test_page_one import DISTURBED
from tests.bench.report_parts import part
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_metrics, make_spec, write_run

RESUMED = ResumedFrom(source="x", checkpoint=1, epochs=2, samples=1, seconds=9.0, times=1)


@pytest.mark.usefixtures("undrawn")
def test_totals_are_those_of_runs_that_were_not_resumed(tmp_path: Path) -> None:
    """Of a resumed run only the rest is measured, and the mean of 100, 100 and 20 s was shown as that of whole runs."""
    for seed, (count, seconds, resumed) in enumerate([(50, 100.0, None), (50, 100.0, None), (10, 20.0, RESUMED)]):
        spec = make_spec("nccl_sync", seed=seed)
        made = make_metrics(spec)
        own = {
            "sync": made.sync.model_copy(update={"count": count}),
            "time_s": made.time_s.model_copy(update={"train": seconds}),
            "resumed": resumed,
        }
        write_run(tmp_path / "runs", spec, made.model_copy(update=own))
    path = write_report(tmp_path / "runs", tmp_path / "report")
    for name in ("Comparison", "Communication"):
        assert re.search(r"\| +50 \|", part(path, name)), name
    assert re.search(r"\| +100 \|", part(path, "Comparison"))


def test_what_was_only_predicted_misses_no_target(tmp_path: Path) -> None:
    """Nothing is trained in a prediction, and page one said that no seed arrives."""
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    missed = shown.cells[0].about.target.model_copy(update={"reached": False, "samples": None, "seconds": None})
    shown = changed(shown, "nccl_sync", source="predicted", target=missed)
    found, _, _ = spoken(shown)
    (option,) = found.options
    assert (option.reach.n, arrival(option)) == (0, "–")
    alone = [cell for cell in shown.cells if not cell.is_solo]
    assert not any(tile.value == "not reached" for tile in tiles(alone))
    only = shown.__class__(tmp_path, tmp_path, tuple(alone), (), ())
    assert target.section(only) == []


def disturbed_cell(folder: Path, speeds: tuple[float, ...]) -> Cell:
    for seed, speed in enumerate(speeds):
        spec = make_spec("nccl_sync", seed=seed)
        made = make_metrics(spec)
        own = {
            "throughput": made.throughput.model_copy(update={"samples_per_s": speed}),
            "warnings": DISTURBED if speed < 1000 else [],
        }
        write_run(folder, spec, made.model_copy(update=own))
    (cell,) = cells(find_runs(folder)[0])
    return cell


def test_disturbed_seeds_are_left_out_of_every_speed(tmp_path: Path) -> None:
    """A tile and the section on changes took their mean over all seeds, beside a table that left one out."""
    now = disturbed_cell(tmp_path / "now", (1000.0, 1000.0, 400.0))
    before = disturbed_cell(tmp_path / "before", (1000.0, 1000.0, 1000.0))
    tile = next(each for each in tiles([now]) if each.label == "samples/s")
    assert (tile.value, tile.dim) == ("1,000", False)
    pair = changes.Pair(before, now)
    moved, shown = pair.ratios[changes.SPEED], CellMove(pair).speed
    assert moved is not None
    assert shown is not None
    assert factor(moved.value) == pytest.approx(factor(shown.value)) == pytest.approx(1.0)
