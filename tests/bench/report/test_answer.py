"""What page one of a report recommends, on chosen numbers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.exitcodes import Exit
from bench.report.page import Page
from bench.report.page_one.answer import Answer, answer
from bench.report.page_one.plane import frontier
from bench.report.page_one.questions import facts
from bench.report.page_one.sentence import sentence
from bench.report.page_one.tiles import tiles
from bench.report.sections.answer import section
from bench.results.cells import Cell, cells
from bench.results.runfolder import find_runs
from bench.validate.verdicts.verdict import LevelFigures, Name, Verdict
from tests.bench.streams import make_metrics, make_spec, write_run

SOLO = (10.0, 10.5, 11.0)
Seconds = Sequence[float | None]


def page(folder: Path, times: Mapping[str, Seconds], verdicts: Mapping[str, Name], **changes: object) -> Page:
    """Runs whose seeds reach the target after so many seconds (None: never), with a verdict each on quality."""
    for mode, seconds in times.items():
        for seed, reached in enumerate(seconds):
            spec = make_spec(mode, seed=seed)
            m = make_metrics(spec)
            at = {"reached": reached is not None, "seconds": reached, "samples": None if reached is None else 1000}
            new = {"target": m.target.model_copy(update=at)} | (changes if mode != "solo" else {})
            write_run(folder, spec, m.model_copy(update=new))
    found = tuple(cells(find_runs(folder)[0]))
    judged = tuple(verdict(cell, verdicts[cell.about.mode]) for cell in found if cell.about.mode in verdicts)
    return Page(folder, folder, found, (), judged)


GOOD, WORSE, OPEN = (
    LevelFigures(0.001, -0.001, 0.003, 0.005, 3, 20, False),
    LevelFigures(0.009, 0.007, 0.012, 0.005, 3, 20, False),
    LevelFigures(0.004, 0.001, 0.008, 0.005, 3, 20, False),
)
"""Of a verdict on quality: worse, its bounds, margin, seeds and those of the baseline."""


def verdict(cell: Cell, name: Name, figures: LevelFigures | None = None) -> Verdict:
    code = Exit.OK if name == "PASS" else Exit.REGRESSION
    figures = figures or {"FAIL": WORSE, "XFAIL": WORSE, "INCONCLUSIVE": OPEN}.get(name, GOOD)
    return Verdict(name, "quality", cell.name, "accuracy 0.9 and more", code, figures=figures)


def asked(page: Page) -> Answer:
    (workload,) = page.workloads
    found = answer(page, page.workloads[workload])
    assert sentence(page, workload, page.workloads[workload], found).endswith(".")
    section(page)
    return found


@pytest.mark.parametrize(
    ("seconds", "name", "kind", "words"),
    [
        ((5.0, 5.2, 5.1), "PASS", "use", "Train `mlp` with nccl_sync ×2"),
        ((15.0, 15.2, 15.1), "PASS", "one", "Stay with one device"),
        ((9.0, 10.9, 12.0), "PASS", "open", "more than 20 seeds would be needed"),
        ((7.0, 10.0, 8.0), "PASS", "open", "about 1 more seed may show it"),
        ((5.0,), "PASS", "open", "about 2 more seeds may show it"),
        ((1.0, 9.0, 50.0), "PASS", "open", "is not measurable yet"),
        ((5.0, 5.2, 5.1), "FAIL", "open", "nothing passed"),
        ((5.0, 5.2, 5.1), "XFAIL", "open", "nothing passed; nccl_sync ×2: proved > 0.50 pt worse"),
        ((5.0, 5.2, 5.1), "INCONCLUSIVE", "open", "whether nccl_sync is as good as one device is not decided"),
        ((5.0, 5.2, None), "PASS", "open", "target reached by 2 of 3 seeds"),
    ],
)
def test_an_answer_is_what_the_evidence_allows(
    tmp_path: Path, seconds: Seconds, name: Name, kind: str, words: str
) -> None:
    shown = page(tmp_path, {"solo": SOLO, "nccl_sync": seconds}, {"nccl_sync": name})
    found = asked(shown)
    assert found.kind == kind
    ((workload, trained),) = shown.workloads.items()
    assert words in sentence(shown, workload, trained, found)


@pytest.mark.parametrize("name", ["PASS", "INCONCLUSIVE"])
def test_a_baseline_of_its_own_says_nothing_of_one_device(tmp_path: Path, name: Name) -> None:
    """A loss that was accepted was called as good as one device."""
    shown = page(tmp_path, {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1)}, {})
    (cell,) = (cell for cell in shown.cells if not cell.is_solo)
    shown = replace(shown, verdicts=(verdict(cell, name, GOOD._replace(own=True)),))
    found = asked(shown)
    assert (found.kind, found.why, found.options[0].passed) == ("open", "failed", False)
    assert found.options[0].quality is not None
    assert found.options[0].quality.difference.n_base == len(SOLO)  # the runs here, not the 20 recorded
    ((workload, trained),) = shown.workloads.items()
    text = " ".join([sentence(shown, workload, trained, found), *map(" ".join, facts(trained, found))])
    assert "recorded" not in text
    assert "as good as one device is not decided" not in text
    assert "To compare nccl_sync with one device" in text
    assert tiles(found)[0].value == ("0 of 1 way" if name == "PASS" else "not decided yet")


def test_what_cannot_be_told_apart_is_named_beside_the_best(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1), "nccl_cadence": (5.1, 5.2, 5.3)}
    times["cpu_async"] = (7.0, 7.1, 7.2)
    found = asked(page(tmp_path, times, dict.fromkeys(times, "PASS")))
    assert found.chosen is not None
    assert found.chosen.cell.about.mode == "nccl_sync"
    assert [option.cell.about.mode for option in found.equals] == ["nccl_cadence"]


def test_of_equals_the_plainest_is_recommended_and_no_better_one_is_lost(tmp_path: Path) -> None:
    """Chance makes one of equals the best: the advice would change from sweep to sweep."""
    times: dict[str, Seconds] = {
        "solo": SOLO,
        "nccl_async": (5.0, 5.2, 5.1),
        "nccl_cadence": (5.1, 5.2, 5.3),
        "cpu_sync": (5.0, 5.1, 5.3),
    }
    shown = page(tmp_path, times, {})

    def recommended(**worse: float) -> tuple[str, str]:
        judged = []
        for cell in shown.cells:
            if (loss := worse.get(cell.about.mode)) is not None:
                figures = LevelFigures(loss, loss - 0.002, loss + 0.002, 0.01, 3, 20, False)
                judged.append(verdict(cell, "PASS", figures))
        page_one = replace(shown, verdicts=tuple(judged))
        found = asked(page_one)
        assert found.chosen is not None
        ((workload, trained),) = page_one.workloads.items()
        return found.chosen.cell.about.mode, sentence(page_one, workload, trained, found)

    assert recommended(nccl_cadence=0.001, nccl_async=-0.0005)[0] == "nccl_cadence", "worse by chance, and plainer"
    assert recommended(nccl_cadence=0.004, nccl_async=-0.0005)[0] == "nccl_async", "shown to be better"
    mode, text = recommended(cpu_sync=0.001, nccl_cadence=0.004, nccl_async=-0.0005)
    assert mode == "cpu_sync", "its ranks do equally many steps"
    assert "is not shown to be better" in text, "one of the others is better, by chance"


@pytest.mark.parametrize(
    "changes", [{"emulated_speeds": [1.0, 0.4]}, {"scripted_faults": ["1@3:stop"]}, {"env": {"cores": 1}}]
)
def test_devices_that_are_none_of_ones_own_are_not_recommended(tmp_path: Path, changes: dict[str, object]) -> None:
    found = asked(page(tmp_path, {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1)}, {"nccl_sync": "PASS"}, **changes))
    assert (found.kind, found.why) == ("open", "limited")
    assert found.chosen is not None
    assert found.chosen.limits


def test_one_rank_is_one_device_and_is_not_recommended(tmp_path: Path) -> None:
    """Its speed beside solo's is noise: on a busy machine it seemed to take half the time."""
    found = asked(page(tmp_path, {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1)}, {"nccl_sync": "PASS"}, world_size=1))
    assert found.kind == "open"
    assert found.chosen is not None
    assert found.chosen.limits == ("one rank, which is one device",)


def test_without_a_verdict_or_one_device_nothing_is_recommended(tmp_path: Path) -> None:
    found = asked(page(tmp_path, {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1)}, {}))
    assert (found.kind, found.why) == ("open", "baseline")
    shutil.rmtree(tmp_path / "mlp" / "solo")
    assert asked(page(tmp_path, {}, {})).kind == "nothing"


def test_what_did_not_pass_stands_first(tmp_path: Path) -> None:
    times: dict[str, Seconds] = {"solo": SOLO, "nccl_sync": (5.0, 5.2, 5.1), "cpu_async": (7.0, 7.1, 7.2)}
    found = asked(page(tmp_path, times, {"nccl_sync": "PASS", "cpu_async": "FAIL"}))
    assert [option.cell.about.mode for option in found.options] == ["cpu_async", "nccl_sync"]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(-9, 9)), min_size=1, max_size=12))
def test_a_frontier_is_what_no_other_point_beats(points: list[tuple[float, float]]) -> None:
    edge = frontier(points)
    assert edge
    for place, (time, quality) in enumerate(points):
        beaten = any(t <= time and q >= quality and (t, q) != (time, quality) for t, q in points)
        if place in edge:
            assert not beaten
        elif not beaten:
            assert points.index((time, quality)) in edge or (time, quality) in [points[k] for k in edge]
