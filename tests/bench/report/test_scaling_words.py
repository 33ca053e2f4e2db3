"""Series over numbers of devices, and what page one says of them, on chosen numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.style import styled
from bench.report import markdown
from bench.report.blocks import BADGE, Facts, Picture, Verdicts
from bench.report.measures.compare import DAGGER, ELSEWHERE, TOGETHER, Rival, rivals
from bench.report.page import Page
from bench.report.page_one.answer import options_of
from bench.report.page_one.scaling_advice import SPEED, TIME, answers, lead
from bench.report.page_one.scaling_series import ScalingSeries, reachable, scaling, task_of, tasks
from bench.report.page_one.scaling_words import Studied, best_of, facts, left, quality, shared
from bench.report.sections import comparison, overview, strong
from bench.report.sections import scaling as weak
from bench.report.sections.every_cell import section as every_cell
from bench.report.sections.scaled import LOWEST, blocks, table
from bench.results.cells import cells
from bench.results.runfolder import Run, find_runs
from bench.results.schema import FaultRow
from bench.validate.verdicts.verdict import Name
from tests.bench.report.test_answer import verdict
from tests.bench.streams import make_metrics, make_spec, write_run

BATCH = 32
Key = tuple[str, int]
WEAK: dict[Key, float] = {("nccl_sync", 2): 1500.0, ("nccl_sync", 4): 1800.0, ("cpu_async", 2): 1700.0}
"""Mode and number of devices -> samples per second; one device does 1,000."""


def tree(
    folder: Path, speeds: Mapping[Key, float], verdicts: Mapping[Key, Name], strong: bool = False, cores: int = 2
) -> Page:
    """Runs of three seeds at such speeds, each of them with so many cores; `strong`: one batch is cut."""
    for (mode, size), speed in {("solo", 1): 1000.0, **speeds}.items():
        for seed in range(3):
            spec = make_spec(mode, size, seed, batch_size=BATCH // size if strong else BATCH)
            m = make_metrics(spec)
            rate = m.throughput.model_copy(update={"samples_per_s": speed * (1 + 0.01 * seed)})
            took = m.target.model_copy(update={"reached": True, "seconds": 1e4 / speed + 0.01 * seed, "samples": 1000})
            new = {"throughput": rate, "target": took, "env": m.env | {"cores": cores}}
            write_run(folder, spec, m.model_copy(update=new))
    found = tuple(cells(find_runs(folder)[0]))
    keyed = [(cell, (cell.about.mode, cell.about.world_size)) for cell in found]
    judged = tuple(verdict(cell, verdicts[key]) for cell, key in keyed if key in verdicts)
    return Page(folder, folder, found, (), judged)


def studied(page: Page, series: ScalingSeries) -> Studied:
    return Studied(series, options_of(page, [Rival(cell, series.solo) for cell in (series.solo, *series.cells)]))


def only(page: Page) -> Studied:
    (series,) = scaling(page)
    return studied(page, series)


def test_one_batch_that_is_cut_is_strong_and_one_for_each_is_weak(tmp_path: Path) -> None:
    cut = tree(tmp_path / "cut", {("nccl_sync", 2): 1500.0, ("nccl_sync", 4): 1800.0}, {}, strong=True)
    (series,) = scaling(cut)
    assert (series.kind, series.workload.batch_size, series.sizes) == ("strong", BATCH, [2, 4])
    assert {task_of(cell) for cell in cut.cells} == {*tasks(cut.cells)}
    each = tree(tmp_path / "each", {("nccl_sync", size): 1000.0 + size for size in (1, 2, 4)}, {})
    (series,) = scaling(each)
    assert (series.kind, series.workload.batch_size, series.sizes) == ("weak", BATCH, [1, 2, 4])
    assert list(series.modes) == ["nccl_sync"]


def test_a_tree_that_compares_ways_of_training_studies_no_scaling(tmp_path: Path) -> None:
    assert scaling(tree(tmp_path, {("nccl_sync", 2): 1500.0, ("cpu_async", 2): 1700.0}, {})) == []
    assert tasks(()) == {}


STUDY = {("nccl_sync", 1): 1000.0, **WEAK}


@pytest.mark.parametrize(
    ("verdicts", "speeds", "words"),
    [
        (dict.fromkeys(STUDY, "PASS"), STUDY, "**cpu_async ×2**; quicker, and sooner at the target"),
        ({**dict.fromkeys(STUDY, "PASS"), ("cpu_async", 2): "FAIL"}, STUDY, "**nccl_sync ×2**; quicker, and sooner"),
        ({**dict.fromkeys(STUDY, "PASS"), ("cpu_async", 2): "INCONCLUSIVE"}, STUDY, "; undecided: cpu_async"),
        (dict.fromkeys(STUDY, "FAIL"), STUDY, "none yet; cpu_async ×2: quicker, but accuracy too low"),
        ({}, STUDY, "none yet; cpu_async ×2: quicker, but its quality is not judged"),
        (dict.fromkeys(STUDY, "PASS"), dict.fromkeys(STUDY, 600.0), "one device; cpu_async ×2: it is slower"),
        (
            {**dict.fromkeys(STUDY, "PASS"), ("cpu_async", 2): "INCONCLUSIVE"},
            {**dict.fromkeys(STUDY, 600.0), ("cpu_async", 2): 1700.0},
            "none yet; nccl_sync ×2: it is slower; quicker, but undecided: cpu_async ×2",
        ),
    ],
)
def test_advice_is_what_speed_and_verdicts_allow(
    tmp_path: Path, verdicts: Mapping[Key, Name], speeds: Mapping[Key, float], words: str
) -> None:
    page = tree(tmp_path, speeds, verdicts)
    (row,) = answers(page, [only(page)]).rows
    assert words in f"{row['take']}; {row['why']}".replace("\N{NO-BREAK SPACE}", " ")
    assert len(row) <= 8


def test_one_sentence_answers_for_all_series(tmp_path: Path) -> None:
    """What pays, what does not, and what is open, each named once."""
    quick = only(tree(tmp_path / "quick", STUDY, dict.fromkeys(STUDY, "PASS")))
    slow = only(tree(tmp_path / "slow", dict.fromkeys(STUDY, 600.0), dict.fromkeys(STUDY, "PASS")))
    page = tree(tmp_path / "open", STUDY, {})
    text = lead(page, [quick, slow, only(page)])
    assert text.startswith("**Several devices are quicker, and as good, for 1 of 3: mlp weak**. ")
    assert "**Stay with one device for mlp weak**." in text
    assert "**No recommendation yet for mlp weak**." in text
    assert text.endswith("*Weak* scaling gives each device a whole batch.")


def test_a_workload_of_a_series_is_answered_on_page_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folded rows named another mode: that sooner at the target, not the quickest."""
    one = tree(tmp_path / "one", STUDY, dict.fromkeys(STUDY, "PASS"))
    monkeypatch.setattr(f"{__name__}.BATCH", 2 * BATCH)
    two = tree(tmp_path / "two", STUDY, dict.fromkeys(STUDY, "PASS"))
    both = Page(tmp_path, tmp_path, (*one.cells, *two.cells), (), (*one.verdicts, *two.verdicts))
    shown = every_cell(both)
    assert sum(isinstance(block, Verdicts) for block in shown) == 2
    assert not any(isinstance(block, Facts) or "**" in getattr(block, "text", "") for block in shown)


def test_one_rank_is_neither_sooner_nor_later(tmp_path: Path) -> None:
    """It runs the program of `solo`: what its time differs by is chance."""
    each = only(tree(tmp_path, {**STUDY, ("nccl_sync", 1): 1500.0, ("cpu_async", 1): 600.0}, {}))
    alone = [option for option in each.options if option.cell.about.world_size == 1]
    assert [(option.sooner, option.later) for option in alone] == [(False, False)] * 2


def test_more_devices_than_cores_are_not_recommended_and_the_limit_is_said(tmp_path: Path) -> None:
    page = tree(tmp_path / "two", STUDY, dict.fromkeys(STUDY, "PASS"))
    each = only(page)
    best = best_of(page, each.options)
    assert best is not None
    assert (best.cell.about.mode, best.cell.about.world_size) == ("cpu_async", 2)
    assert shared(page, [each.series]) == "4 devices share 2 cores: efficiency 50 % at most."
    roomy = tree(tmp_path / "eight", STUDY, dict.fromkeys(STUDY, "PASS"), cores=8)
    best = best_of(roomy, only(roomy).options)
    assert best is not None
    assert best.cell.about.world_size == 4
    assert shared(roomy, [only(roomy).series]) == ""
    assert best_of(page, []) is None


def test_every_number_of_devices_has_its_own_verdict(tmp_path: Path) -> None:
    verdicts: dict[Key, Name] = {
        **dict.fromkeys(STUDY, "PASS"),
        ("nccl_sync", 4): "FAIL",
        ("nccl_sync", 2): "INCONCLUSIVE",
    }
    page = tree(tmp_path, STUDY, verdicts)
    each = only(page)
    rows = {row["way of training"]: row for row in table(page, [each]).rows}
    assert len(rows["nccl_sync"]) <= 8
    sync = {head: cell.rpartition(BADGE)[2] for head, cell in rows["nccl_sync"].items()}
    assert (sync["1 device"], sync["2 devices"]) == ("quality OK", "not decided")
    assert sync["4 devices on 2 cores: 50 % at most"] == "accuracy too low"
    assert rows["**→ cpu_async**"]["4 devices on 2 cores: 50 % at most"] == "–"
    assert rows["nccl_sync"][LOWEST] == "-0.90 pt on 4", "and on how many devices that is"
    assert (
        quality(each.options)
        == "2 of 4 results are; not decided: 1; accuracy too low: 1. Up to 0.50 points worse is allowed."
    )
    todo = left(page, [each])
    assert "nccl_sync on 2" in todo
    assert "nccl_sync on 4 (proved > 0.50 pt worse)." in todo
    assert all(text for _, text in facts(page, [each], page.cells))


@pytest.mark.parametrize("cores", [2, 8])
def test_the_ideal_is_out_of_reach_where_devices_outnumber_cores(tmp_path: Path, cores: int) -> None:
    page = tree(tmp_path, STUDY, dict.fromkeys(STUDY, "PASS"), cores=cores)
    with styled():
        (drawn,) = [block for block in blocks(page, scaling(page)) if isinstance(block, Picture)]
    assert ("Grey: more devices than cores" in drawn.alt) == (cores < 4)
    assert ("most that cores allow" in (tmp_path / drawn.drawing).read_text()) == (cores < 4)
    assert reachable(4, 2) == ([2, 4], [2, 2])


def altered(page: Page, sizes: Collection[int], **fields: object) -> Page:
    """The page, with other metrics on so many devices."""

    def new(run: Run) -> Run:
        return replace(run, metrics=run.metrics.model_copy(update=fields))

    hit = [
        replace(cell, runs=tuple(map(new, cell.runs))) if not cell.is_solo and cell.about.world_size in sizes else cell
        for cell in page.cells
    ]
    return replace(page, cells=tuple(hit))


LOST = FaultRow(seconds=3.0, rank=1, kind="lost", text="killed", action="went on with rank 0")


def test_times_that_page_one_refuses_for_a_workload_are_not_recommended_by_for_a_series(tmp_path: Path) -> None:
    page = tree(tmp_path / "far", STUDY, dict.fromkeys(STUDY, "PASS"), cores=8)
    page = altered(page, (1, 2, 4), env={**page.cells[0].about.env, "cpu": "of another make"})
    (row,) = answers(page, [only(page)]).rows
    assert (row["take"], row[SPEED], row[TIME]) == ("none yet", "–", "–")
    assert "another machine than one device's" in row["why"]
    with styled():
        text = markdown.render(blocks(page, scaling(page)))
        assert (text.count("*timed elsewhere*"), "×)" in text, text.count(ELSEWHERE)) == (4, False, 1)
        assert "times solo's samples/s" not in markdown.render(overview.section(page))
        for section in (comparison.section, weak.section):
            assert ELSEWHERE in markdown.render(section(page))
        assert TOGETHER in text
    assert [rival.speedup is None for rival in rivals(list(page.cells))].count(False) == 1


def test_a_cohort_that_shrank_is_marked_and_not_recommended(tmp_path: Path) -> None:
    page = altered(tree(tmp_path, STUDY, dict.fromkeys(STUDY, "PASS"), cores=8), [4], faults=[LOST])
    (row,) = answers(page, [only(page)]).rows
    assert row["take"] == "**cpu_async\N{NO-BREAK SPACE}×2**"
    with styled():
        text = markdown.render(blocks(page, scaling(page)))
    assert ("1.80 × † (45 %)" in text, text.count(DAGGER)) == (True, 1)
    alone = altered(page, [2], faults=[LOST])
    (row,) = answers(alone, [only(alone)]).rows
    assert (row["take"], "its times are of runs that lost a rank" in row["why"]) == ("none yet", True)


def test_strong_scaling_explains_the_dagger_and_leaves_such_cells_out_of_the_picture(tmp_path: Path) -> None:
    speeds = {("nccl_sync", 2): 1500.0, ("nccl_sync", 4): 1800.0}
    page = altered(tree(tmp_path, speeds, {}, strong=True), [4], faults=[LOST])
    with styled():
        shown = strong.section(page)
    assert DAGGER in markdown.render(shown)
    (picture,) = (block for block in shown if isinstance(block, Picture))
    assert "on 1, 2 ranks" in picture.alt
