"""The matrix as a table: every cell has a meaning or a reason, and something is documented of those with one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bench.faults import moments, processes
from bench.faults.meaning import (
    KINDS,
    PHASES,
    PROCESSES,
    RANKS,
    VIRTUAL,
    WHOLE,
    WORLDS,
    FaultCell,
    FaultOutcome,
    cells,
    chosen,
    documented,
    meaningless,
)
from bench.faults.modes import MODES, twin
from bench.faults.moments import SLICES
from bench.faults.process_proofs import PAUSE_S, note_of, proof
from bench.faults.processes import hit_by
from ddp.backends import BACKENDS
from ddp.core.messages.events import Alive, Merged, Progress
from ddp.core.settings import faults
from ddp.engine.modes import modes
from ddp.engine.phase_faults import PhaseInjector


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
        assert cell.kind in (moments if world == VIRTUAL else processes).FAULTS or cell.kind == "slow link"
    facts, counts = MODES[mode], Counter(cell.kind for cell in with_meaning)
    if facts.one_process:
        assert bool(with_meaning) == (world == PROCESSES)
        return
    if world == VIRTUAL and twin(mode) != mode:
        assert not with_meaning
        return
    phases = 6 + facts.checkpoints
    assert all(counts[kind] == 4 * phases for kind in ("crash", "stop", "raise")), "every phase, four choices of ranks"
    saving = {"disk full", "corrupt checkpoint"} if not facts.checkpoints else set()
    elsewhere = {"corrupt checkpoint", "coordinator killed"} if world == VIRTUAL else {"slow link"}
    assert set(counts) == set(KINDS) - elsewhere - saving


def test_the_matrix_has_all_modes_of_real_processes() -> None:
    assert set(MODES) == {name for name in modes() if not name.startswith("virtual")}
    alike = {twin(name): [other for other in MODES if twin(other) == twin(name)] for name in MODES}
    assert set(alike[twin("zero1")]) >= {"zero1", "zero2", "zero3", "torch_ddp"}
    assert set(alike[twin("torch_fsdp")]) >= {"torch_fsdp", "torch_zero1", "torch_local_sgd"}, (
        "they make no checkpoints"
    )
    own = ("zero1", "torch_fsdp", "nccl_sync", "nccl_cadence", "nccl_async", "cpu_cadence", "graph_cadence", "solo")
    assert len({twin(name) for name in own}) == len(own)


def test_what_befalls_a_process_befalls_all_ranks_in_it() -> None:
    for name in ("graph_sync", "graph_cadence", "solo"):
        of = [cell for cell in cells([name]) if not meaningless(cell, PROCESSES)]
        assert {cell.ranks for cell in of if cell.kind in WHOLE} == {"all"}
        assert {cell.kind for cell in of} == {*WHOLE, "raise", "slow", "corrupt checkpoint"}
        assert all(hit_by(cell, 3) == (0,) for cell in of if cell.kind in WHOLE)
        assert documented(FaultCell("crash", "step", "all", name)) == {FaultOutcome.RESUMED}
        assert documented(FaultCell("raise", "step", "all", name)) == {FaultOutcome.ENDED}
    assert documented(FaultCell("coordinator killed", "end", "all", "torch_fsdp")) == {FaultOutcome.ENDED}


def test_every_kind_has_a_meaning_in_some_world() -> None:
    both = {cell.kind for world in WORLDS for cell in cells(MODES) if not meaningless(cell, world)}
    assert both == set(KINDS)


def test_ranks_are_chosen_by_their_place() -> None:
    assert [chosen(ranks, 3) for ranks in RANKS] == [(0,), (2,), (1, 2), (0, 1, 2)]
    assert chosen("two", 64) == (31, 32)
    assert chosen("all", 8) == tuple(range(8))


def test_what_is_documented_says_who_can_be_done_without() -> None:
    for mode in (mode for mode in MODES.values() if not mode.one_process):
        averages = BACKENDS[mode.backend].averages
        crash = documented(FaultCell("crash", "step", "first", mode.name))
        assert crash == {FaultOutcome.LOST if averages else FaultOutcome.ENDED}
        assert documented(FaultCell("crash", "step", "all", mode.name)) == {FaultOutcome.ENDED}
        assert documented(FaultCell("raise", "step", "two", mode.name)) == {FaultOutcome.ENDED}
        assert documented(FaultCell("pause", "step", "all", mode.name)) == {FaultOutcome.UNHURT}
        lost = {FaultOutcome.LOST} if averages else set()  # one may be back before the next is lost
        of_all = documented(FaultCell("lost message", "evaluation", "all", mode.name))
        assert of_all == {FaultOutcome.UNHURT, FaultOutcome.ENDED, *lost}


def test_a_pause_is_proved_by_what_the_rank_noted(tmp_path: Path) -> None:
    """Found on a loaded machine: words of the coordinator on the rank, and of the rank's other threads, came 30 ms after it
    had noted the time, before it stood still."""
    cell = FaultCell("pause", "collective", "first", "nccl_cadence")
    until = 10.1 + PAUSE_S
    ledger, early, late = (
        Merged(10.03, 0, 0, ((0, 8),)),
        Alive(10.06, 0),
        Progress(until - 0.01, 0, 0, 1, 8, 0.1, 1.0, 0.1),
    )
    records = [(record.at, record) for record in (ledger, early, late)]
    note = tmp_path / "phase-0"
    note.write_text(f"10.0 1 {until}")
    assert proof(cell, records, tmp_path, (0,), "ok") == "rank 0 stood still for 1.23 s (1 of 1 ranks)"
    in_between = Alive(10.5, 0)
    assert proof(cell, [*records, (10.5, in_between)], tmp_path, (0,), "ok") == "", "it did not stand still"
    note.write_text("10.0 1")
    assert proof(cell, records, tmp_path, (0,), "ok") == "", "it never went on"


def test_an_error_that_ends_a_run_without_a_coordinator_is_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "phase-1").write_text("10.0 1")
    cell, words = FaultCell("raise", "step", "last", "graph_sync"), "rank 1 failed: RuntimeError: so"
    assert proof(cell, [], tmp_path, (1,), "failed", words) == f"{words} (1 of 1 ranks)"
    assert proof(cell, [], tmp_path, (1,), "failed", "rank 0 failed: RuntimeError: so") == ""


def test_a_rank_that_is_killed_while_it_writes_its_note_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the matrix: two ranks were hit, and the run's end killed the second one between opening and writing."""
    job = processes.job_of(FaultCell("raise", "end", "first", "nccl_sync"), 2, tmp_path)
    injector = PhaseInjector(job, 0, lambda factor: None, lambda: None)

    def torn(path: Path, text: str, encoding: str) -> None:
        path.open("w").close()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", torn)
        with pytest.raises(SystemExit):
            injector.meet("end")
    assert note_of(job.scratch, 0) is None
    injector = PhaseInjector(job, 0, lambda factor: None, lambda: None)
    with pytest.raises(RuntimeError, match="the matrix of faults says so"):
        injector.meet("end")
    note = note_of(job.scratch, 0)
    assert note is not None
    assert note.pid == os.getpid()
