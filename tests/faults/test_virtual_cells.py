"""Cells in virtual time: as documented, and a fault that did not happen, or lost samples, are found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.faults import moments, virtual
from bench.faults.meaning import VIRTUAL, FaultCell, FaultOutcome, cells, meaningless
from bench.faults.modes import MODES
from bench.faults.outcome import FaultResult, full_strength, merged, merged_before, missing, noticed, went_on
from ddp.core.messages.commands import CoordinatorCheckpoint, Drop
from ddp.core.messages.events import Lost, Merged, Progress
from ddp.core.messages.join_events import Joined
from ddp.core.samples.ledger import Ledger
from tests.slow import every, slow

VIRTUAL_MODES = [name for name in MODES if not all(meaningless(cell, VIRTUAL) for cell in cells([name]))]


@pytest.mark.parametrize("mode", every(3, VIRTUAL_MODES))
def test_cells_of_four_ranks_are_as_documented(mode: str) -> None:
    """Play a fifth of each mode's, others for the next mode; `make faults` plays all, of eight ranks and of 64."""
    meant = [cell for cell in cells([mode]) if not meaningless(cell, VIRTUAL)]
    assert len(meant) == (196 if MODES[mode].checkpoints else 164)
    results = [virtual.play(cell, 4) for cell in meant[VIRTUAL_MODES.index(mode) % 5 :: 5]]
    assert [f"{result.cell}: {result.verdict}" for result in results if not result.good] == []
    ended = {result.cell for result in results if result.outcome is FaultOutcome.ENDED}
    assert all(result.missing == 0 for result in results if result.cell not in ended)


@pytest.mark.parametrize("kind", ["crash", "slow link", *slow("lost message", "disk full")])
def test_some_cells_of_64_ranks(kind: str) -> None:
    phase = "checkpoint" if kind == "disk full" else "step"
    for mode in ("nccl_sync", "nccl_cadence", "cpu_async"):
        assert virtual.play(FaultCell(kind, phase, "two", mode), 64).good


@pytest.mark.parametrize("kind", sorted({*moments.FAULTS, "slow link"}))
def test_a_fault_that_did_not_happen_is_found_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks are said to be hit, and nothing is done to them."""
    phase = "checkpoint" if kind == "disk full" else "step"

    def spare(striker: moments.Striker, rank: int) -> None:
        striker.struck[rank] = striker._simulation.now

    monkeypatch.setattr(moments.Striker, "_strike", spare)
    result = virtual.play(FaultCell(kind, phase, "two", "nccl_cadence"), 4)
    assert (result.happened, result.verdict) == ("", "the fault did not happen")


def test_a_phase_that_never_comes_is_no_blow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(moments.SLICES, "evaluation", "never")
    assert virtual.play(FaultCell("crash", "evaluation", "first", "nccl_sync"), 4).happened == ""


def test_a_result_is_wrong_if_samples_are_missing_or_it_is_not_documented() -> None:
    result = virtual.play(FaultCell("crash", "step", "first", "nccl_cadence"), 4)
    assert result.good
    assert replace(result, missing=3).verdict == "3 samples are missing"
    assert replace(result, missing=-1).verdict == "-1 samples are missing"
    assert replace(result, outcome=FaultOutcome.ENDED).verdict == "ended, documented: went on"
    assert not replace(result, outcome=None).good


def records() -> list[tuple[float, Any]]:
    def work(at: float, rank: int) -> tuple[float, Progress]:
        return at, Progress(at, rank, 0, 1, 4, 0.1, 0.0, 0.1)

    return [
        work(1.0, 0),
        (2.5, Lost(2.5, 1, "gone")),
        (2.6, Drop(1, "gone")),
        work(3.0, 0),
        (4.0, Joined(4.0, 1, 0)),
        work(5.0, 1),
        (6.0, Merged(6.0, 0, 0, ((0, 6),))),
        (6.0, Merged(6.0, 1, 0, ((6, 8),))),
    ]


def test_seconds_and_samples_are_read_from_records() -> None:
    assert noticed(records(), (1,), 2.0) == 0.5
    assert went_on(records(), (1,), 2, 2.0) == 1.0
    assert full_strength(records(), (1,), 2.0) == 3.0
    assert full_strength(records()[:5], (1,), 2.0) is None
    assert (missing(merged(records()), 8, 1), missing(merged(records()), 10, 1)) == (0, 2)
    twice = [*records(), (7.0, Merged(7.0, 0, 0, ((0, 1),)))]
    assert missing(merged(twice), 8, 1) == -1


def test_what_a_checkpoint_contains_is_counted_as_trained() -> None:
    """One sample twice and another never were taken for none missing."""
    open_epoch = Ledger(1, 8, ((6, 8),), (), ((0, 6),))
    saved = CoordinatorCheckpoint(8, 2, (open_epoch,), 3, 1, None, None)
    for span, expected in ((6, 8), 0), ((6, 7), 1), ((5, 7), -1):
        assert missing([*merged_before(saved), (1, (span,))], 8, 2) == expected


def test_what_is_played_is_the_same_again() -> None:
    cell = FaultCell("lost message", "snapshot", "two", "cpu_cadence")
    first: FaultResult = virtual.play(cell, 8)
    assert first == virtual.play(cell, 8)
