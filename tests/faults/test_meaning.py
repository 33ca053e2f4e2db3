"""The matrix as a table: every cell has a meaning or a reason, and something is documented of those with one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.faults.meaning import (
    FATAL,
    KINDS,
    MODES,
    PHASES,
    RANKS,
    VIRTUAL,
    WORLDS,
    FaultCell,
    FaultOutcome,
    cells,
    chosen,
    documented,
    meaningless,
)
from bench.faults.moments import FAULTS, SLICES
from bench.faults.process_proofs import PAUSE_S, proof
from bench.faults.processes import INJECTED
from ddp.backends import BACKENDS
from ddp.core import faults
from ddp.core.events import Merged, Progress


def test_there_are_ten_kinds_eight_phases_and_four_choices_of_ranks() -> None:
    assert (len(KINDS), len(PHASES), len(RANKS)) == (10, 8, 4)
    assert len(set(cells(["nccl_sync"]))) == 320
    assert tuple(PHASES) == faults.PHASES


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mode", MODES)
def test_cells_with_a_meaning_are_played_and_documented(mode: str, world: str) -> None:
    with_meaning = [cell for cell in cells([mode]) if not meaningless(cell, world)]
    for cell in with_meaning:
        assert documented(cell)
        assert cell.phase in SLICES or cell.phase in ("start", "end")
        assert cell.kind in (FAULTS if world == VIRTUAL else INJECTED) or cell.kind == "slow link"
    counts = Counter(cell.kind for cell in with_meaning)
    assert all(counts[kind] == 28 for kind in FATAL), "seven phases, four choices of ranks"
    played = {cell.kind for cell in with_meaning}
    assert played == set(KINDS) - ({"corrupt checkpoint", "coordinator killed"} if world == VIRTUAL else {"slow link"})


def test_every_kind_has_a_meaning_in_some_world() -> None:
    both = {cell.kind for world in WORLDS for cell in cells(MODES) if not meaningless(cell, world)}
    assert both == set(KINDS)


def test_ranks_are_chosen_by_their_place() -> None:
    assert [chosen(ranks, 3) for ranks in RANKS] == [(0,), (2,), (1, 2), (0, 1, 2)]
    assert chosen("two", 64) == (31, 32)
    assert chosen("all", 8) == tuple(range(8))


def test_what_is_documented_says_who_can_be_done_without() -> None:
    for mode in MODES.values():
        averages = BACKENDS[mode.backend].averages
        crash = documented(FaultCell("crash", "step", "first", mode.name))
        assert crash == {FaultOutcome.LOST if averages else FaultOutcome.ENDED}
        assert documented(FaultCell("crash", "step", "all", mode.name)) == {FaultOutcome.ENDED}
        assert documented(FaultCell("raise", "step", "two", mode.name)) == {FaultOutcome.ENDED}
        assert documented(FaultCell("pause", "step", "all", mode.name)) == {FaultOutcome.UNHURT}


def test_a_line_of_the_ledger_is_no_word_of_the_rank(tmp_path: Path) -> None:
    """Found on a loaded machine: the coordinator wrote that line 30 ms after the rank was stopped."""
    (tmp_path / "phase-0").write_text("10.0 1")
    cell = FaultCell("pause", "collective", "first", "nccl_cadence")
    ledger, word = Merged(10.03, 0, 0, ((0, 8),)), Progress(10.0 + PAUSE_S, 0, 0, 1, 8, 0.1, 1.0, 0.1)
    records = [(record.at, record) for record in (ledger, word)]
    assert proof(cell, records, tmp_path, (0,), "ok") == "rank 0 stood still for 1.20 s (1 of 1 ranks)"
    assert proof(cell, [(10.03, replace(word, at=10.03)), *records], tmp_path, (0,), "ok") == ""
