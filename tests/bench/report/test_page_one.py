"""What page one shows of a way of training: rows, figures, picture and words, of one computation each."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.environment import BUSY
from bench.base.mode_styles import mode_style
from bench.base.style import styled
from bench.report import markdown
from bench.report.blocks import Beside, Block, Facts, LeadText, SmallText, Tiles, Verdicts
from bench.report.glossary import glossary
from bench.report.measures import losses
from bench.report.measures.compare import rivals
from bench.report.measures.intervals import MOST_SEEDS, WIDEST, Interval, seeds_to_decide, seeds_to_measure
from bench.report.page import Page
from bench.report.page_one.answer import Answer, Option, answer
from bench.report.page_one.frontier import caption, picture
from bench.report.page_one.plane import Extent, Point, edge_of, limits, ticks
from bench.report.page_one.questions import LEFT, LIMITS, SURE, facts
from bench.report.page_one.sentence import sentence
from bench.report.page_one.tiles import tiles
from bench.report.page_one.words import QUALITY, reason
from bench.report.sections import commands
from bench.report.sections.answer import SOONER, row, section
from bench.report.sections.speedup import columns
from bench.results.rerun_command import command
from bench.validate.verdicts.verdict import Name
from ddp.engine.modes import modes
from tests.bench.report.test_answer import GOOD, SOLO, Seconds, page, verdict

DISTURBED = [f"{BUSY} 0.9 of 2 cores during the run: its speeds are too low"]
QUICK, SLOW = (5.0, 5.2, 5.1), (15.0, 15.2, 15.1)


def answered(shown: Page) -> tuple[Answer, str]:
    ((workload, trained),) = shown.workloads.items()
    found = answer(shown, trained)
    return found, sentence(shown, workload, trained, found)


def left_to_do(shown: Page) -> str:
    ((_, trained),) = shown.workloads.items()
    return dict(facts(trained, answer(shown, trained)))["What is left to do?"]


def blocks_of(shown: Page) -> list[Block]:
    found = section(shown)
    return [*found, *(block.other for block in found if isinstance(block, Beside))]


def option(found: Answer, mode: str) -> Option:
    return next(each for each in found.options if each.cell.about.mode == mode)


def test_a_failed_way_that_is_quickest_stands_first_is_hollow_and_never_on_the_frontier(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK, "nccl_cadence": (7.0, 7.1, 7.2), "cpu_sync": SLOW}
    shown = page(tmp_path, times, {"nccl_sync": "FAIL", "nccl_cadence": "PASS", "cpu_sync": "PASS"})
    found, text = answered(shown)
    assert [each.cell.about.mode for each in found.options] == ["nccl_sync", "nccl_cadence", "cpu_sync"]
    assert "Train `mlp` with nccl_cadence ×2" in text
    points = [Point.of(each, 100.0) for each in found.options]
    assert [point.trusted for point in points] == [False, True, True]
    assert points[0].place not in edge_of(points)
    assert points[1].place in edge_of(points)
    assert "Hollow: quality not OK" in caption(points, limited=True, dashed=True)
    ((workload, _),) = shown.workloads.items()
    with styled():
        drawn = picture(shown, workload, found, "answer", (4.7, 2.9))
    assert drawn is not None
    svg = (tmp_path / drawn.drawing).read_text()
    assert "nccl_sync: accuracy too low" in svg


def test_what_passed_is_sorted_by_what_the_reader_decides(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "cpu_sync": SLOW, "nccl_sync": (9.0, 10.9, 12.0)}
    times |= {"cpu_async": QUICK, "nccl_async": (5.0, None, 5.0), "nccl_cadence": (1.0, 9.0, 50.0)}
    found, _ = answered(page(tmp_path, times, dict.fromkeys(times, "PASS")))
    ordered = [each.cell.about.mode for each in found.options]
    assert ordered == ["cpu_async", "nccl_sync", "nccl_cadence", "cpu_sync", "nccl_async"]
    assert found.chosen is found.options[0], "what is spoken of is the first that passed"


def test_nothing_is_recommended_of_runs_that_were_all_disturbed(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK}
    shown = page(tmp_path, times, {"nccl_sync": "PASS"}, warnings=DISTURBED)
    found, text = answered(shown)
    assert (found.kind, found.why) == ("open", "disturbed")
    assert "other programs used the same cores in 3 of 6 runs" in text
    assert left_to_do(shown).startswith("First rerun the 3 disturbed runs on idle cores")
    measured = tiles(found)[1]
    assert (measured.value, measured.dim) == ("not measurable yet", True)
    assert row(shown, found.options[0], found.options)[SOONER] == "*disturbed*"


def test_disturbed_runs_of_a_script_are_rerun_by_its_calls(tmp_path: Path) -> None:
    """A script has no `force=true`, and of a cell's seeds only the first was in the report."""
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK}
    shown = page(tmp_path, times, {"nccl_sync": "PASS"}, warnings=DISTURBED)
    assert "commands under *Reproduce*, with `force=true`. " in f"{left_to_do(shown)} "
    for cell in shown.cells:
        for run in cell.runs:
            seed = str(run.metrics.seed % 2)  # two of them are of one call
            run.config["script"] = {"path": "/a/b.py", "folder": "/a", "arguments": [cell.about.mode, seed]}
    assert "commands under *Reproduce*. " in f"{left_to_do(shown)} "
    calls = [f"cd /a && python /a/b.py {mode} {seed}" for mode in times for seed in (0, 1)]
    assert [command(cell.runs) for cell in shown.cells] == [" && ".join(calls[:2]), " && ".join(calls[2:])]
    printed = markdown.render(commands.section(shown))
    assert "One line for each cell, or for each call of a script, with all its seeds (6 runs in all):" in printed
    assert "\n".join(calls) in printed


def test_times_are_of_undisturbed_seeds_where_there_are_two(tmp_path: Path) -> None:
    shown = page(tmp_path / "quiet", {"solo": SOLO, "nccl_sync": QUICK}, {"nccl_sync": "PASS"})
    shown.cells[1].runs[0].metrics.warnings.extend(DISTURBED)
    found, _ = answered(shown)
    assert found.kind == "use"
    assert found.chosen is not None
    assert found.chosen.time is not None
    assert (found.chosen.time.n, found.chosen.time.n_base) == (2, 3)
    ((_, trained),) = shown.workloads.items()
    sure = dict(facts(trained, found))["How sure is that?"]
    assert "3 seeds of it, 3 of one device. Times are of 2 and 3 of them." in sure
    assert "1 of 6 runs" in sure
    (rival,) = (each for each in rivals(shown.cells) if not each.cell.is_solo)
    assert columns(rival, "speed-up", 1.0)["n"] == "2", "as of the speed-up beside it"


def test_one_device_is_counted_nowhere_among_the_ways(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK, "cpu_async": SLOW}
    shown = page(tmp_path, times, {"solo": "PASS", "nccl_sync": "PASS", "cpu_async": "INCONCLUSIVE"})
    found = blocks_of(shown)
    (figures,) = [block for block in found if isinstance(block, Tiles)]
    (table,) = [block for block in found if isinstance(block, Verdicts)]
    assert figures.items[0].value == "1 of 2 ways"
    assert figures.items[0].note == "not decided: cpu_async"
    assert len(table.rows) == 2
    assert any("9 runs of 2 ways of training and of one device" in getattr(block, "text", "") for block in found)


def test_reason_and_figures_of_a_row_are_of_one_computation(tmp_path: Path) -> None:
    """Of a FAIL whose figures lie within the margin, nothing is said that they do not bear."""
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK}
    found, _ = answered(page(tmp_path / "a", times, {"nccl_sync": "FAIL"}))
    assert reason(found.options[0]) == "proved > 0.50 pt worse"
    shown = page(tmp_path / "a", times, {"nccl_sync": "FAIL"})
    assert row(shown, found.options[0], found.options)["accuracy − recorded"] == "-0.90 pt"
    shown = page(tmp_path / "b", times, {})
    strange = verdict(shown.cells[1], "FAIL", GOOD)
    found, _ = answered(replace(shown, verdicts=(strange,)))
    assert "worse" not in reason(found.options[0])


def test_figures_name_their_way_of_training_and_workloads_are_kept_apart(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK}
    one = page(tmp_path / "a", times, {"nccl_sync": "PASS"})
    other = page(tmp_path / "b", times, {"nccl_sync": "INCONCLUSIVE"}, batch_size=7)
    both = Page(tmp_path, tmp_path, (*one.cells, *other.cells), (), (*one.verdicts, *other.verdicts))
    found = blocks_of(both)
    leads = [block.text for block in found if isinstance(block, LeadText)]
    assert len(leads) == len(both.workloads) > 1
    for block in found:
        if isinstance(block, Tiles):
            assert all("nccl_sync ×2" in tile.note for tile in block.items[1:])
    questions = [dict(block.items) for block in found if isinstance(block, Facts)]
    assert len(questions) == len(both.workloads)
    assert all(each[LIMITS] and each[LEFT] and each[SURE] for each in questions)
    assert ["`mode=solo`" in each[LEFT] for each in questions] == [False, True]
    assert all(len(block.columns) <= 8 for block in found if isinstance(block, Verdicts))


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("PASS", "`mlp` with nccl_sync ×2 is as good as one device"),
        ("FAIL", "`mlp` with nccl_sync ×2 is worse than one device"),
        ("XFAIL", "`mlp` with nccl_sync ×2 is worse than one device"),
        ("INCONCLUSIVE", "`mlp` with nccl_sync ×2 is not yet shown to be as good as one device"),
    ],
)
def test_without_one_device_recorded_runs_of_it_are_what_is_compared_to(tmp_path: Path, name: Name, claim: str) -> None:
    """Figures of its own stand in for ratios to one device."""
    found = blocks_of(page(tmp_path, {"nccl_sync": QUICK}, {"nccl_sync": name}))
    (lead,) = [block.text for block in found if isinstance(block, LeadText)]
    assert lead.startswith(f"**{claim}**: accuracy ")
    assert lead.endswith("no run of one device is here (`mode=solo` trains one).")
    assert not [block for block in found if isinstance(block, Verdicts)]
    (tiles,) = [block for block in found if isinstance(block, Tiles)]
    assert tiles.items[0].label == "final accuracy"


def test_no_column_is_empty_without_one_device(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"nccl_sync": QUICK, "cpu_async": SLOW}
    found = blocks_of(page(tmp_path, times, {"nccl_sync": "PASS", "cpu_async": "INCONCLUSIVE"}))
    (lead,) = [block.text for block in found if isinstance(block, LeadText)]
    assert lead.startswith("**1 of 2 ways of training `mlp` are as good as one device**")
    (table,) = [block for block in found if isinstance(block, Verdicts)]
    assert {*table.columns} == {"on 2 devices", "quality", "why", "samples/s", "accuracy − recorded"}


def test_every_word_of_a_shown_mode_is_explained(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": QUICK, "cpu_async": SLOW}
    shown = page(tmp_path, times, dict.fromkeys(times, "PASS"))
    words = " ".join(block.text for block in section(shown) if isinstance(block, SmallText))
    assert all(f"*{part}*: " in words for part in ("nccl", "sync", "cpu", "async"))


@pytest.mark.parametrize("mode", [name for name in modes() if name != "solo"])
def test_the_glossary_knows_every_mode(mode: str) -> None:
    parts = glossary([mode])
    assert parts
    assert all(text and not text.endswith(".") and len(text) < 140 for text in parts.values())


def test_a_mode_looks_the_same_on_every_page_and_like_no_other() -> None:
    known = [name for name in modes() if not name.startswith("virtual_")]
    assert all(mode_style(a) != mode_style(b) for a, b in combinations(known, 2))
    assert mode_style("one_of_mine") == mode_style("one_of_mine")


def test_quality_is_not_called_by_what_could_be_taken_for_speed() -> None:
    assert QUALITY["PASS"] == "quality OK"
    assert len(set(QUALITY.values())) == len(QUALITY)


@given(
    st.floats(0.01, 0.99),
    st.dictionaries(st.sampled_from(sorted(losses.WORDS)), st.floats(-0.5, 0.9), max_size=len(losses.WORDS)),
)
def test_losses_add_up_to_what_is_missing(missing: float, shares: dict[str, float]) -> None:
    found = losses.percents(missing, shares)
    assert sum(share for _, share in found) == round(100 * missing)
    assert all(share >= 1 for name, share in found if name)


def test_losses_are_told_as_parts_of_a_whole() -> None:
    mine = dict.fromkeys(losses.WORDS, 0.0) | {"compute": 10.0, "wait": 2.0, "comm": 1.0, "other": 0.5}
    solo = dict.fromkeys(losses.WORDS, 0.0) | {"compute": 9.0, "other": 0.5}
    shares = losses.lost(mine, solo)
    missing = 1 - 9.5 / 13.5
    assert math.isclose(sum(shares.values()), missing)
    assert losses.in_words(missing, shares) == (
        "missing 30 %: 15 % waiting, 7 % communicating, 7 % slower computing than on one device, 1 % the rest"
    )
    assert losses.in_words(-0.05, shares) == ""


@given(st.floats(0.05, 20.0), st.floats(1.01, 50.0), st.integers(2, 12), st.integers(2, 12))
def test_more_seeds_than_are_needed_decide(value: float, width: float, n: int, base: int) -> None:
    ratio = Interval(value, value / width, value * width, n, base)
    more = seeds_to_decide(ratio)
    assert more is None or 1 <= more <= MOST_SEEDS
    narrower = seeds_to_decide(Interval(value, value / width**0.5, value * width**0.5, n, base))
    if more is not None:
        assert narrower is not None
        assert narrower <= more


def test_seeds_are_estimated_from_the_width() -> None:
    assert seeds_to_decide(Interval(0.69, 0.11, 4.42, 3, 3)) is None
    assert seeds_to_decide(Interval(0.8, 0.62, 1.03, 3, 3)) == 1
    assert seeds_to_decide(Interval(0.5)) == 2
    wide = Interval(1.0, 0.3, 3.4, 3, 3)
    assert wide.wide
    assert not Interval(1.0, 0.6, 0.6 * WIDEST, 3, 3).wide
    assert seeds_to_measure(wide) == 3


@given(st.lists(st.floats(0.011, 99.0), min_size=1, max_size=12))
def test_an_axis_holds_every_end_and_has_ticks(values: list[float]) -> None:
    low, high = limits(values, logarithmic=True)
    assert all(low < value < high for value in values)
    places = ticks(low, high)
    assert all(low <= place <= high for place in places)
    assert len(places) <= 16


@pytest.mark.parametrize("most", [1.004, 1.02, 1.04, 1.1, 1.4])
def test_an_axis_of_small_changes_has_ticks_too(most: float) -> None:
    assert 3 <= len(ticks(1 / most, most)) <= 9


def test_arrows_are_drawn_where_an_end_is_unknown_alone() -> None:
    assert Extent(1.0, None, 2.0).unbounded(0.01, 100) == (True, False)
    assert Extent(1.0, 0.5, 2.0).unbounded(0.01, 100) == (False, False)
    assert Extent(1.0, 0.5, 900.0).unbounded(0.01, 100) == (False, True)
