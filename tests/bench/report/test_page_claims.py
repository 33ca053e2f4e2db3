"""What page one must not claim: of runs that failed, simulated seconds, other machines, targets that nobody set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench.base.style import styled
from bench.report import markdown
from bench.report.blocks import LeadText, Text, Tiles
from bench.report.cell_changes import Side, moves
from bench.report.measures.compare import gap, rivals
from bench.report.measures.time_to_target import reach
from bench.report.page import Page
from bench.report.page_one.answer import Answer, answer
from bench.report.page_one.frontier import picture
from bench.report.page_one.questions import LEFT, SURE, as_good, facts, left, setup
from bench.report.page_one.scaling_series import answered, outside, scaling
from bench.report.page_one.sentence import sentence
from bench.report.page_one.tiles import tiles
from bench.report.page_one.words import arrival, compared, difference, reason, span
from bench.report.sections import changes, comparison, overview, profile, quality, target
from bench.report.sections.answer import section
from bench.report.sections.scaled import blocks
from bench.results.cells import Cell, cells, solo_of
from bench.results.runfolder import Run, find_runs
from bench.results.schema import Metrics
from bench.validate.verdicts.verdict import remark
from tests.bench.report.test_answer import SOLO, Seconds, page
from tests.bench.report.test_scaling_words import WEAK, tree
from tests.bench.streams import make_metrics, make_spec, write_run

QUICK: Mapping[str, Seconds] = {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1)}


def spoken(shown: Page) -> tuple[Answer, str, dict[str, str]]:
    ((workload, trained),) = shown.workloads.items()
    found = answer(shown, trained)
    return found, sentence(shown, workload, trained, found), dict(facts(trained, found))


def changed(shown: Page, mode: str, **new: object) -> Page:
    """The page, with other metrics in the runs of a mode."""

    def other(run: Run) -> Run:
        return replace(run, metrics=run.metrics.model_copy(update=new)) if run.metrics.mode == mode else run

    return replace(shown, cells=tuple(replace(cell, runs=tuple(map(other, cell.runs))) for cell in shown.cells))


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_one_device_of_which_no_run_finished_is_reported_as_such(tmp_path: Path, status: str) -> None:
    spec = make_spec("solo")
    write_run(tmp_path, spec, make_metrics(spec, status=status, error="boom"))
    shown = Page(tmp_path, tmp_path, tuple(cells(find_runs(tmp_path)[0])), (), ())
    _, text, _ = spoken(shown)
    assert text.endswith(f"one device is all that was tried, and no run of it finished (1 {status}).")
    assert any(isinstance(block, LeadText) for block in section(shown))


def test_simulated_seconds_are_not_compared_with_real_ones(tmp_path: Path) -> None:
    shown = changed(page(tmp_path, QUICK, {"nccl_sync": "PASS"}), "nccl_sync", source="virtual")
    found, _, _ = spoken(shown)
    (option,) = found.options
    assert (found.kind, option.time, option.speed) == ("open", None, None)
    assert reason(option) == "simulated devices"
    (rival,) = [each for each in rivals(list(shown.cells)) if not each.cell.is_solo]
    assert (rival.speedup, rival.distorted) == (None, True)


def test_times_to_different_targets_are_not_divided(tmp_path: Path) -> None:
    """A target is lowered and one mode trained again: it was recommended, as the quicker one."""
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    (old,) = {m.target.value for cell in shown.cells for m in cell.one_each}
    assert old is not None

    def lowered(run: Run) -> Run:
        goal = run.metrics.target.model_copy(update={"value": old / 2})
        return replace(run, metrics=run.metrics.model_copy(update={"target": goal}))

    solo, cell = shown.cells
    for some in (cell.runs, cell.runs[:1]):
        mixed = replace(cell, runs=(*map(lowered, some), *cell.runs[len(some) :]))
        other = replace(shown, cells=(solo, mixed))
        found, text, _ = spoken(other)
        (option,) = found.options
        assert (found.kind, found.why, option.time) == ("open", "missed", None)
        assert option.speed is not None
        assert (reason(option), arrival(option)) == ("targets differ", "–")
        assert "targets differ" in text
        assert "Train to one target." in left(other.cells, found)
        (tile,) = [tile for tile in tiles(found) if tile.label.startswith("time to target")]
        assert tile.note.endswith("targets differ")
        row = target._row(reach(mixed), reach(solo))
        assert (row["× solo's samples"], row["× solo's seconds"]) == ("–", "–")
        assert "different targets are not compared" in str(target.section(other))
        (move,) = moves(Side("a", (cell,)), Side("b", (mixed,)))
        assert move.time is None


def test_seeds_that_now_miss_the_target_are_not_left_out(tmp_path: Path) -> None:
    """Of 20k, 21k and 40k samples the last one is missed: the others looked like 0.75 times as many."""
    shown = page(tmp_path, QUICK, {})

    def at(samples: tuple[int | None, ...]) -> Cell:
        runs = [
            replace(run, metrics=run.metrics.model_copy(update={"target": goal}))
            for run, cost in zip(shown.cells[1].runs, samples, strict=True)
            if (goal := run.metrics.target.model_copy(update={"reached": cost is not None, "samples": cost}))
        ]
        return replace(shown.cells[1], runs=tuple(runs))

    before, now, later = at((20_000, 21_000, 40_000)), at((19_000, 19_500, None)), at((21_000, 22_000, 41_000))
    pair = changes.Pair(before, now)
    assert pair.quality is not None
    assert not pair.quality.decided
    assert (pair.ratios[changes.ARRIVAL], pair.changed) == (None, True)
    assert changes._row(pair)["samples to target: × before"] == "3 of 3 → 2 of 3"
    assert (changes.Pair(now, now).ratios[changes.ARRIVAL], changes.Pair(now, now).changed) == (None, False)
    unmissed = changes.Pair(before, later)
    assert unmissed.ratios[changes.ARRIVAL] is not None
    assert not unmissed.changed


def test_the_seeds_of_an_interval_are_those_it_is_of(tmp_path: Path) -> None:
    """It was of 20 recorded runs, and said to be of 3 seeds each."""
    found, text, _ = spoken(page(tmp_path, QUICK, {"nccl_sync": "PASS"}))
    assert found.kind == "use"
    assert "; 3 seeds against 20 recorded)" in text


def test_a_simulated_device_is_a_reference_only_where_no_real_one_is(tmp_path: Path) -> None:
    shown = page(tmp_path, QUICK, {})
    simulated = replace(shown.cells[0], runs=changed(shown, "solo", source="virtual").cells[0].runs)
    assert solo_of([simulated, shown.cells[0]]) is shown.cells[0]
    assert solo_of([simulated]) is simulated
    runs = [Run(tmp_path, m.model_copy(update={"source": "virtual"})) for m in shown.cells[0].one_each]
    assert cells(runs)[0].label == "solo (virtual)"


def test_times_of_two_machines_are_not_recommended_by(tmp_path: Path) -> None:
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    env = shown.cells[0].about.env
    elsewhere = changed(shown, "nccl_sync", env={**env, "cpu": "of another make"})
    found, text, _ = spoken(elsewhere)
    assert (found.kind, found.why) == ("open", "limited")
    assert "are of another machine than one device's" in text
    assert spoken(changed(shown, "nccl_sync", env={**env, "cores": 999}))[0].kind == "use"


@pytest.mark.parametrize("name", ["FAIL", "REFUSED", "EXPIRED"])
def test_a_baseline_is_not_missed_where_there_is_one(tmp_path: Path, name: str) -> None:
    shown = page(tmp_path, QUICK, {})
    line = remark(name, "status", shown.cells[1].name, "rank 1 raised")  # type: ignore[arg-type]
    found, text, questions = spoken(replace(shown, verdicts=(line,)))
    assert found.why == "failed"
    assert "nothing passed; nccl_sync ×2: status: rank 1 raised" in text
    assert found.chosen is not None
    assert as_good(found.chosen) == "Not judged: status: rank 1 raised."
    assert "A baseline of one device" not in questions[LEFT]


def test_a_target_that_is_met_at_once_has_no_mean_time(tmp_path: Path) -> None:
    """There is no geometric mean of zeros: the report ended with a traceback."""
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    met = shown.cells[0].about.target.model_copy(update={"seconds": 0.0})
    found, _, _ = spoken(changed(shown, "solo", target=met))
    assert "target" not in setup(shown.cells, found)


def test_a_target_that_nobody_set_is_not_missed(tmp_path: Path) -> None:
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    none = shown.cells[0].about.target.model_copy(update={"value": None, "reached": False, "seconds": None})
    for mode in QUICK:
        shown = changed(shown, mode, target=none)
    found, text, questions = spoken(shown)
    (option,) = found.options
    assert (arrival(option), reason(option)) == ("–", "no target is set")
    assert text.endswith("no target is set.")
    assert "Train longer" not in questions[LEFT]
    (tiles,) = [block for block in section(shown) if isinstance(block, Tiles)]
    assert "seeds" not in tiles.items[1].note


def test_differences_are_to_recorded_runs_only_where_all_are_judged(tmp_path: Path) -> None:
    times: Mapping[str, Seconds] = {**QUICK, "cpu_async": (7.0, 7.1, 7.2)}
    found, _, _ = spoken(page(tmp_path, times, {"nccl_sync": "PASS"}))
    assert [compared([option]) for option in found.options] == ["recorded", "one device's"]
    assert compared(found.options) == "one device's"


def test_disturbed_runs_are_said_to_be_left_out_only_where_they_are(tmp_path: Path) -> None:
    shown = page(tmp_path, {**QUICK, "cpu_async": (7.0, 7.1, 7.2)}, dict.fromkeys((*QUICK, "cpu_async"), "PASS"))
    other = changed(shown, "cpu_async", warnings=["other programs used 1.0 of 2 cores during the run"])
    _, _, questions = spoken(other)
    assert "times of cpu_async say little" in questions[SURE]
    assert "left out" not in questions[SURE]


def lower(shown: Page) -> Page:
    """The page, as if less were better."""

    def turned(m: Metrics) -> Metrics:
        end = m.final.model_copy(update={"eval_metric": "cross_entropy", "higher_is_better": False})
        return m.model_copy(update={"final": end})

    def other(cell: Cell) -> Cell:
        return replace(cell, runs=tuple(replace(run, metrics=turned(run.metrics)) for run in cell.runs))

    return replace(shown, cells=tuple(map(other, shown.cells)))


def test_a_difference_of_a_loss_has_the_sign_of_a_subtraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (gap(0.5, "cross_entropy"), gap(0.5, "cross_entropy", False)) == ("-0.5", "+0.5")
    assert {gap(behind, "accuracy") for behind in (0.0, 4e-5, -4e-5)} == {"+0.00 pt"}
    shown = lower(page(tmp_path, QUICK, {"nccl_sync": "FAIL"}))
    found, _, _ = spoken(shown)
    assert (difference(found.options[0]), span(found.options[0])) == ("+0.009", "+0.007 to +0.012")
    drawn: list[Figure] = []
    monkeypatch.setattr(Page, "figure", lambda self, figure, *_: drawn.append(figure))
    ((workload, _),) = shown.workloads.items()
    picture(shown, workload, found, "answer", (4.7, 2.9))
    quality.section(shown)
    axes = [figure.axes[0] for figure in drawn]
    for axis in (axes[0].yaxis, axes[1].xaxis):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        assert [float(label) for label in labels] == pytest.approx([-place for place in axis.get_ticklocs()])


def test_a_reference_that_has_nothing_beside_it_is_answered_by_its_series(tmp_path: Path) -> None:
    shown = tree(tmp_path, {("nccl_sync", 2): 1500.0, ("nccl_sync", 4): 1800.0}, {}, strong=True)
    series = scaling(shown)
    assert answered(shown, series) == {*shown.workloads}
    leads = [block.text for block in section(shown) if isinstance(block, LeadText)]
    assert not any("all that was tried" in text for text in leads)


def test_a_cell_that_crashed_is_named_beside_its_series(tmp_path: Path) -> None:
    sizes = {("nccl_sync", size): 1000.0 + size for size in (1, 2, 4)}
    shown = tree(tmp_path, {**sizes, **WEAK}, {})
    slow = shown.cells[0].about.throughput.model_copy(update={"samples_per_s": None})
    crashed = changed(shown, "cpu_async", throughput=slow, status="failed")
    series = scaling(crashed)
    assert [cell.label for cell in outside(crashed, series)] == ["cpu_async ×2"]
    with styled():
        found = blocks(crashed, series)
    texts = [block.text for block in found if isinstance(block, Text)]
    assert any(text.startswith("In no series: mlp cpu_async ×2 (3 failed") for text in texts), texts
    assert any("no run finished" in str(getattr(block, "items", "")) for block in found)


def test_simulated_seconds_have_no_place_in_the_profile(tmp_path: Path) -> None:
    shown = page(tmp_path, QUICK, {})
    with styled():
        assert "| nccl_sync |" in markdown.render(profile.section(shown))
        assert profile.section(changed(shown, "nccl_sync", source="virtual")) == []


@pytest.mark.parametrize(("times", "words"), [(1.0, "+0.77 pt"), (100.0, "+0.7655")])
def test_an_accuracy_in_per_cent_is_not_shown_a_hundred_times_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, words: str
) -> None:
    shown = page(tmp_path, QUICK, {})

    def scaled(run: Run) -> Run:
        final = run.metrics.final
        end = final.model_copy(update={"eval": times * (final.eval or 0.0)})
        return replace(run, metrics=run.metrics.model_copy(update={"final": end}))

    shown = replace(shown, cells=tuple(replace(cell, runs=tuple(map(scaled, cell.runs))) for cell in shown.cells))
    drawn: list[Figure] = []
    monkeypatch.setattr(Page, "figure", lambda self, figure, *_: drawn.append(figure))
    with styled():
        for each in (section, comparison.section, overview.section, quality.section):
            assert words in (text := markdown.render(each(shown)))
            assert (" pt" in text) == (times == 1)
    ends = [line.get_xdata() for line in drawn[-1].axes[0].lines]
    assert any(list(x) == pytest.approx([0.7655], abs=1e-4) for x in ends)
