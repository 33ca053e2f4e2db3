"""Speeds that say nothing of real devices, one for each rank, and what a report must not claim of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.environment import SHARED_GPU
from bench.base.style import styled
from bench.report import markdown
from bench.report.measures.compare import TOGETHER, Rival, distortions, rivals
from bench.report.page import Page
from bench.report.page_one.scaling_series import scaling
from bench.report.page_one.tiles import tiles
from bench.report.page_one.words import reason, share, times
from bench.report.sections import environment, profile
from bench.report.sections.answer import section
from bench.results.cells import cells
from bench.results.schema import LauncherInfo
from tests.bench.report.test_answer import SOLO, page
from tests.bench.report.test_page_claims import QUICK, changed, spoken
from tests.bench.report.test_scaling_words import WEAK, tree

SLOW = (300.0, 320.0, 310.0)
HOSTS = LauncherInfo(name="slurm", job="1", hosts=["a", "b"], clock_error_s=[0.0, 0.0])
OWN = "each with a process of its own"


def rival(shown: Page) -> Rival:
    (one,) = [each for each in rivals(list(shown.cells)) if not each.cell.is_solo]
    return one


def first_page(shown: Page) -> str:
    with styled():
        return markdown.render(section(shown))


def over(shown: Page, links: list[str]) -> Page:
    """The page, with emulated links between its ranks."""
    runs = [
        replace(run, config={"cluster": {"links": links}} if not cell.is_solo else {})
        for cell in shown.cells
        for run in cell.runs
    ]
    return replace(shown, cells=tuple(cells(runs)))


@pytest.mark.parametrize("seconds", [QUICK["nccl_sync"], SLOW])
def test_ranks_on_the_cpu_are_not_compared_with_one_gpu(tmp_path: Path, seconds: tuple[float, ...]) -> None:
    """With fewer GPUs than ranks, all ranks train on the CPU, and page one advised to stay with one device."""
    shown = page(tmp_path, {"solo": SOLO, "nccl_sync": seconds}, {"nccl_sync": "PASS"})
    shown = changed(changed(shown, "solo", devices=["cuda:0"]), "nccl_sync", devices=["cpu", "cpu"])
    found, text, known = spoken(shown)
    (option,) = found.options
    assert (found.kind, found.why, times(option), share(option)) == ("open", "limited", "–", "–")
    assert reason(option) == "CPU cores, where one device's are of GPUs"
    assert "the times of nccl_sync ×2 are of CPU cores, where one device's are of GPUs" in text
    assert TOGETHER in known["What is left to do?"]
    assert [tile.value for tile in tiles(found) if tile.label.startswith(("time", "efficiency"))] == ["–"]
    assert (rival(shown).speedup, rival(shown).distorted) == (None, True)
    first = first_page(shown)
    assert OWN not in first
    assert "(processes: *ranks*) on" in first
    assert "no GPU" not in first
    with styled():
        assert profile.section(shown) == []


def test_a_rank_that_never_came_so_far_is_on_no_other_kind_of_device(tmp_path: Path) -> None:
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    (solo, cell) = shown.cells
    lost = replace(cell.runs[0], metrics=cell.runs[0].metrics.model_copy(update={"devices": [], "status": "failed"}))
    assert Rival(replace(cell, runs=(lost, *cell.runs[1:])), solo).elsewhere == ""


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({}, True),
        ({"devices": ["cuda:0", "cuda:1"]}, False),
        ({"devices": ["cpu", "cpu"]}, False),
        ({"launcher": HOSTS}, False),
        ({"launcher": HOSTS, "warnings": [f"2 ranks share 1 {SHARED_GPU}"]}, True),
    ],
)
def test_ranks_that_share_a_gpu_are_no_devices(tmp_path: Path, changes: dict[str, object], shares: bool) -> None:
    """Page one called them devices of their own, and recommended them."""
    shown = page(tmp_path, QUICK, {"nccl_sync": "PASS"})
    kind = {"devices": ["cuda:0", "cuda:0"], **changes}
    shown = changed(changed(shown, "solo", devices=[str(kind["devices"])[2:-2].split("'")[0]]), "nccl_sync", **kind)
    found, _, _ = spoken(shown)
    assert found.options[0].limits == (("ranks that share a GPU",) if shares else ())
    assert found.kind == ("open" if shares else "use")
    assert rival(shown).distorted is shares
    assert ("two processes (*ranks*) that share a GPU" in first_page(shown), OWN in first_page(shown)) == (
        shares,
        not shares and "cpu" not in str(kind),
    )
    with styled():
        assert (profile.section(shown) == []) is shares


def test_some_ways_share_a_gpu_and_others_do_not(tmp_path: Path) -> None:
    shown = page(tmp_path, {**QUICK, "nccl_async": SOLO}, {})
    for mode, devices in (("solo", 1), ("nccl_sync", 2), ("nccl_async", 2)):
        shared = ["cuda:0"] * devices
        shown = changed(shown, mode, devices=["cuda:0", "cuda:1"] if mode == "nccl_async" else shared)
    assert "two processes (*ranks*); some share a GPU" in first_page(shown)


def test_times_over_emulated_links_are_not_recommended_by(tmp_path: Path) -> None:
    shown = over(page(tmp_path, QUICK, {"nccl_sync": "PASS"}), ["wan_1g_30ms"])
    assert shown.cells[1].label == "nccl_sync ×2 over wan_1g_30ms"
    assert distortions(shown.cells[1]) == ("emulated links",)
    assert distortions(shown.cells[0]) == ()
    assert rival(shown).distorted
    found, _, _ = spoken(shown)
    assert found.kind == "open"
    assert found.options[0].limits == ("emulated links",)
    with styled():
        assert profile.section(shown) == []


@pytest.mark.parametrize("strong", [False, True])
def test_emulated_links_are_in_no_series(tmp_path: Path, strong: bool) -> None:
    shown = tree(tmp_path, WEAK | {("nccl_sync", 1): 1000.0}, {}, strong=strong)
    assert scaling(shown)
    assert scaling(over(shown, ["wan_1g_30ms"])) == []


def test_ranks_in_virtual_time_share_no_cores(tmp_path: Path) -> None:
    """64 of them could reach no more than 3 % of the ideal, it was said."""
    shown = page(tmp_path, QUICK, {})
    many = changed(shown, "nccl_sync", world_size=64, devices=["cpu"] * 64)
    assert "64 ranks shared them" in environment.crowding(many.runs)
    virtual = changed(many, "nccl_sync", source="virtual")
    assert virtual.cores(virtual.cells[1]) is None
    assert "shared them" not in environment.crowding(virtual.runs)
    assert environment.crowding([run.metrics for run in virtual.cells[1].runs]) == ""
    assert "two devices" not in first_page(virtual)


def test_a_cell_that_was_interrupted_misses_no_target(tmp_path: Path) -> None:
    """It was infinitely late in the profile, where *Time to target* leaves it out."""
    shown = page(tmp_path, {**QUICK, "nccl_async": SOLO}, {})
    reached = shown.cells[0].about.target.model_copy(update={"reached": False, "samples": None, "seconds": None})
    killed = changed(shown, "nccl_async", status="killed", target=reached)
    with styled():
        text = markdown.render(profile.section(killed))
    assert "| nccl_sync |" in text
    assert "| nccl_async |" not in text
    assert "or one in several ways: nccl_async." in text
