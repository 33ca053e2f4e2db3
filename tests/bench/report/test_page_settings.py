"""Pages of several settings of one mode, of runs that were not timed, and of two machines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench.report.cell_changes import Side, moves
from bench.report.measures.compare import Rival
from bench.report.page import CellGroup, FigureBudget, Page
from bench.report.page_one import single_cell
from bench.report.page_one.answer import answer
from bench.report.page_one.questions import setup
from bench.report.page_one.scaling_series import dashes, scaling, way_of
from bench.report.page_one.scaling_words import Studied
from bench.report.sections import comparison, curves, scaled, speedup, target
from bench.report.sections.scaled import table
from bench.results.cells import Cell, cells
from bench.results.runfolder import Run
from tests.bench.report.test_answer import Seconds, page
from tests.bench.report.test_scaling_words import studied
from tests.bench.streams import make_metrics, make_spec

SPEEDS = {1: 1000.0, 2: 1500.0, 8: 5000.0}


def made(mode: str, size: int = 1, rate: float = 1000.0, **new: object) -> list[Run]:
    """Three seeds of a mode at about such a speed."""
    runs = []
    for seed in range(3):
        m = make_metrics(make_spec(mode, size, seed))
        own = m.throughput.model_copy(update={"samples_per_s": rate * (1 + 0.01 * seed)})
        runs.append(Run(Path(f"{mode}-{size}-{seed}-{new}"), m.model_copy(update={"throughput": own, **new})))
    return runs


def several(folder: Path) -> Page:
    """One mode over two transports on each number of devices."""
    runs = made("solo")
    for size, rate in SPEEDS.items():
        for wire, factor in (("shm", 1.0), ("gloo", 0.8)):
            runs += made("nccl_sync", size, factor * rate, transport=wire, config_hash=f"{wire}{size}")
    return Page(folder, folder, tuple(cells(runs)), (), ())


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr(Page, "figure", lambda self, figure, *_: figures.append(figure))
    return figures


def test_settings_of_one_mode_have_lines_and_rows_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, figures = several(tmp_path), drawn(monkeypatch)
    ways = ["nccl_sync over gloo", "nccl_sync over shm"]
    assert list(dict.fromkeys(map(way_of, page.cells[1:]))) == ways
    (series,) = scaling(page)
    ordered = Studied(series, sorted(studied(page, series).options, key=scaled._place))
    assert [row["way of training"] for row in table(page, [ordered]).rows] == ways
    scaled._picture(page, [ordered])
    speedup.draw(page, [Rival(cell, page.cells[0]) for cell in page.cells], "name", "title", None)
    for figure in figures:
        lines = [line for line in figure.axes[0].get_lines() if len(set(line.get_xdata())) > 1]  # type: ignore[arg-type]
        dashed = {line.get_linestyle() for line in lines if line.get_marker() not in ("None", "", "_", None)}
        assert len(dashed) == len(ways), dashed
    group = CellGroup(page, "title", page.cells[0].workload, list(page.cells), FigureBudget(9))
    curves._figure(2, group, [cell for cell in page.cells if cell.about.world_size == 2])
    names = {axes.texts[0].get_text() for axes in figures[-1].axes}
    assert names == {f"nccl_sync ×2 over {wire}, n=3" for wire in ("gloo", "shm")}, "each has plots of its own"


def test_ways_of_one_mode_are_told_apart_by_their_dashes() -> None:
    found = dashes({"a over x": "a", "a over y": "a", "b": "b"})
    assert found["a over x"] == found["b"] == "-"
    assert found["a over y"] != "-"


def test_many_devices_are_on_a_logarithmic_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, figures = several(tmp_path), drawn(monkeypatch)
    scaled._picture(page, [studied(page, each) for each in scaling(page)])
    assert figures[0].axes[0].get_xscale() == "log"


@pytest.mark.parametrize(("one", "other"), [("my-net", "my_net"), ("MLP", "mlp")])
def test_figures_of_models_of_like_names_have_files_of_their_own(tmp_path: Path, one: str, other: str) -> None:
    page = Page(tmp_path, tmp_path, tuple(cells(made("solo", model=one) + made("solo", model=other))), (), ())
    names = {CellGroup(page, "", work, [], FigureBudget(1)).slug("curves").casefold() for work in page.workloads}
    assert len(names) == 2


def test_the_comparison_says_of_what_its_ratio_of_speeds_is() -> None:
    runs = made("solo")
    for run, rate in zip(made("nccl_sync", 2), (500.0, 1000.0, 4000.0), strict=True):
        own = run.metrics.throughput.model_copy(update={"samples_per_s": rate})
        runs.append(replace(run, metrics=run.metrics.model_copy(update={"throughput": own})))
    solo, other = cells(runs)
    ratio = Rival(other, solo).speedup
    assert ratio == pytest.approx(2e9 ** (1 / 3) / 1010, rel=1e-3), "of geometric means"
    assert comparison._row(Rival(other, solo))["× solo"] == f"{ratio:.2f}"
    assert "*× solo*: samples per second over solo's, of geometric means over the undisturbed seeds" in comparison.INTRO


def untimed() -> Cell:
    run = made("solo")[0]
    there = run.metrics.target.model_copy(update={"reached": True, "samples": 1000, "seconds": 0.0})
    (cell,) = cells([replace(run, metrics=run.metrics.model_copy(update={"timing": False, "target": there}))])
    return cell


def test_a_time_that_was_not_measured_is_not_called_missed(tmp_path: Path) -> None:
    cell = untimed()
    row = target._row(target.reach(cell), None)
    assert (row["samples"], row["seconds"]) == ("1,000", "–")
    shown = {tile.label: tile.value for tile in single_cell.tiles([cell])}
    assert "time to target" not in shown
    assert shown["samples to target"] == "1,000 samples"


def test_page_one_and_the_table_have_one_time_to_the_target(tmp_path: Path) -> None:
    """Page one had a geometric mean, 1.71 s, and the table a median."""
    times: dict[str, Seconds] = {"solo": (1.0, 1.25, 4.0), "nccl_sync": (2.0, 3.0, 4.0)}
    shown = page(tmp_path, times, {"nccl_sync": "PASS"})
    solo = shown.cells[0]
    assert target._row(target.reach(solo), None)["seconds"] == "1.25"
    assert {tile.label: tile.value for tile in single_cell.tiles([solo])}["time to target"] == "1.25 s"
    assert re.search(r"target [\d.]+ after 1.25 s\. ", setup(shown.cells, answer(shown, list(shown.cells))))


def side(rate: float, **new: object) -> Side:
    return Side(f"at {rate}", tuple(cells(made("nccl_sync", 2, rate, **new))))


def test_another_machine_or_a_disturbed_run_is_no_change_of_the_code() -> None:
    before = side(1000.0)
    env = before.cells[0].about.env
    busy = ["other programs used 1.0 of 2 cores during the run"]
    assert moves(before, side(500.0))[0].losses == ["samples/s"]
    for new in ({"env": {**env, "cpu": "of another make"}}, {"warnings": busy}, {"source": "virtual"}):
        (move,) = moves(before, side(500.0, **new))
        assert (move.trend, move.losses) == ("same", [])
        assert move.speed is not None, "it is shown, with a warning"
