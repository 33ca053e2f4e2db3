"""Page one with many ways of training: rows, their numbers in the picture, and why some are slow."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.style import styled
from bench.report.blocks import Beside, Facts, SmallText, Tiles, Verdicts
from bench.report.glossary import glossary
from bench.report.page_one.answer import answer
from bench.report.page_one.questions import LIMITS
from bench.report.page_one.scaling_advice import answers
from bench.report.page_one.scaling_series import scaling
from bench.report.sections import target
from bench.report.sections.answer import rows_of, section
from bench.report.sections.scaled import LOWEST, studied, table
from tests.bench.report import drawn
from tests.bench.report.test_answer import SOLO, Seconds, page
from tests.bench.report.test_page_one import QUICK, SLOW, answered, blocks_of, left_to_do
from tests.bench.report.test_scaling_words import WEAK, tree


def test_many_points_bear_the_numbers_of_their_rows(tmp_path: Path) -> None:
    shown = drawn.example(tmp_path)
    with styled():
        found = blocks_of(shown)
    first = next(block.other for block in found if isinstance(block, Beside))
    assert isinstance(first, Verdicts)
    assert [next(iter(row.values())).strip("*").partition(" ")[0] for row in first.rows] == [*"123456789"]
    assert next(iter(first.rows[first.marked[0]].values())).startswith(f"**{first.marked[0] + 1} → ")
    svg = (tmp_path / "answer.svg").read_text()
    assert all(f">{number}</text>" in svg for number in range(1, 10))
    assert "nccl_sync" not in svg
    few = page(tmp_path / "few", {"solo": SOLO, "nccl_sync": QUICK, "cpu_async": SLOW}, {"nccl_sync": "PASS"})
    with styled():
        section(few)
    assert ">nccl_sync</text>" in (tmp_path / "few" / "answer.svg").read_text()


def test_what_the_answer_names_has_a_row_and_its_number_however_many_did_not_pass(tmp_path: Path) -> None:
    shown = drawn.example(tmp_path, drawn.MANY)
    ((_, trained), *_) = shown.workloads.items()
    found = answer(shown, trained)
    assert found.chosen is not None
    for several, most in ((True, 8), (False, 10)):
        first = rows_of(found, several)
        assert found.chosen in first
        assert len(first) == most <= found.options.index(found.chosen) + 1
    ten = replace(found, options=found.options[:9])
    assert rows_of(ten, several=True) == ten.options, "for the sake of one row nothing is left out"
    with styled():
        table = next(block.other for block in blocks_of(shown) if isinstance(block, Beside))
    place = found.options.index(found.chosen) + 1
    assert [next(iter(row.values())) for row in table.rows][-1] == f"**{place} → {found.chosen.cell.about.mode}**"


def test_why_collectives_inside_the_steps_are_slow_on_small_models_is_said(tmp_path: Path) -> None:
    limits = [dict(block.items)[LIMITS] for block in blocks_of(drawn.example(tmp_path)) if isinstance(block, Facts)]
    told = [text for text in limits if "torch_ddp" in text]
    assert told
    assert all("collectives inside the steps, through gloo" in text for text in told)


def test_several_workloads_have_four_figures_over_all(tmp_path: Path) -> None:
    """Verdicts, time to target, efficiency with intervals, and the worst result, each named."""
    for made in (drawn.example, drawn.scaling):
        with styled():
            (figures,) = [block for block in section(made(tmp_path)) if isinstance(block, Tiles)]
        first, time, speed, worst = figures.items
        assert figures.slim
        assert " of " in first.value
        assert re.search(r"×2 \(\d\.\d\d to \d\.\d\d\)", time.note)
        assert re.search(r"×2 \(\d+ to \d+ %\)", speed.note)
        assert worst.value.endswith(" pt")


def test_what_failed_stands_first_over_numbers_of_devices(tmp_path: Path) -> None:
    speeds = {("nccl_sync", 1): 1000.0, **WEAK}
    page = tree(tmp_path, speeds, {**dict.fromkeys(speeds, "PASS"), ("nccl_sync", 4): "FAIL"})
    shown = studied(page, scaling(page))
    first, *_ = table(page, shown).rows
    assert first["way of training"] == "nccl_sync"
    assert first[LOWEST] == "-0.90 pt on 4"
    assert not answers(page, shown).marked, "what is taken is in bold"


def test_the_worst_result_is_the_worst_that_is_shown_judged_or_not(tmp_path: Path) -> None:
    speeds = {("nccl_sync", 2): 1500.0, ("nccl_sync", 4): 1800.0}
    page = tree(tmp_path, speeds, {("nccl_sync", 4): "PASS"}, strong=True)
    worse = page.cells[-2].about.final.model_copy(update={"eval": 0.1})
    cells = [
        replace(cell, runs=tuple(replace(r, metrics=r.metrics.model_copy(update={"final": worse})) for r in cell.runs))
        if cell.about.world_size == 2
        else cell
        for cell in page.cells
    ]
    page = replace(page, cells=tuple(cells))
    (row,) = table(page, studied(page, scaling(page))).rows
    assert row[LOWEST].endswith(" on 2")


def test_ratios_of_page_one_and_of_the_sections_are_of_one_computation(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": (1.0, 1.0, 4.0), "nccl_sync": (1.0, 2.0, 3.0)}
    shown = page(tmp_path, times, {"nccl_sync": "PASS"})
    ((_, trained),) = shown.workloads.items()
    (option,) = answer(shown, trained).options
    solo, cell = trained
    assert option.time is not None
    assert option.speed is not None
    assert target._row(target.reach(cell), target.reach(solo))["× solo's seconds"] == f"{option.time.value:.2f}"
    speeds = [run.metrics.throughput.model_copy(update={"samples_per_s": 10.0**n}) for n, run in enumerate(cell.runs)]
    runs = tuple(
        replace(run, metrics=run.metrics.model_copy(update={"throughput": speed}))
        for run, speed in zip(cell.runs, speeds, strict=True)
    )
    uneven = replace(shown, cells=(solo, replace(cell, runs=runs)))
    (other,) = answer(uneven, [*uneven.cells]).options
    assert other.speed is not None
    assert other.rival.speedup == pytest.approx(other.speed.value)


def test_what_lacks_seeds_says_how_many(tmp_path: Path) -> None:
    shown = page(tmp_path, {"solo": SOLO, "nccl_sync": QUICK}, {"nccl_sync": "INCONCLUSIVE"})
    short = tuple(replace(verdict, lacking=3) for verdict in shown.verdicts)
    todo = left_to_do(replace(shown, verdicts=short))
    assert "3 more seeds can decide on nccl_sync" in todo


def test_what_cannot_be_told_from_the_recommended_is_said_so(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK, "nccl_cadence": (5.1, 5.2, 5.3)}
    _, text = answered(page(tmp_path, times, dict.fromkeys(times, "PASS")))
    assert text.endswith("nccl_cadence cannot be told from it, by time or by accuracy.")


def test_runs_of_one_device_are_not_called_ways_of_training(tmp_path: Path) -> None:
    first = next(block for block in section(page(tmp_path, {"solo": SOLO}, {})) if isinstance(block, SmallText))
    assert first.text.startswith("3 runs of one device: **3 ok**.")
    assert "×2" not in first.text


def test_the_glossary_says_when_ranks_run_ahead() -> None:
    assert "on nccl only with policy.max_overshoot" in glossary(["nccl_async"])["async"]
