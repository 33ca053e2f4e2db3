"""Faults in parts of a run whose records are not kept, and what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.analysis.faults import missing, past, rows
from bench.results.live.run import Trouble
from bench.results.runfolder import EVENTS
from bench.runner.earlier_records import attempt
from ddp.core.messages import commands, events
from ddp.core.messages.event_parts import PastFault
from ddp.core.messages.run_bounds import Attempt, Launched
from ddp.core.rounds.rounds import IN_STEP
from ddp.process.codec import encode
from tests.bench.results.test_faults import SPEC, bereft
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec


def test_faults_before_all_ranks_began_again_are_told_and_nobody_is_missing() -> None:
    """Those whose records are not kept were left out: `faults` was empty after six kills."""
    gone = PastFault(1.5, 2, "lost", "its process is gone", "went on with ranks 0 and 1")
    ended = PastFault(2.5, 0, "lost", "its process is gone", "ended the run")
    attempt = Attempt(LAUNCHED - 10.0, LAUNCHED - 9.0, LAUNCHED - 4.0, 640, (gone, ended))
    header, *records = make_records(SPEC)
    back = events.Resumed(LAUNCHED + 5.0, 3, 1, 64, "runs/x", "rank 1: gone", 48, (3.0, 1.0), faults=(gone,))
    begun = make_metrics(SPEC, [header, *records], attempts=(attempt,))
    assert [(row.seconds, row.rank, row.action, row.earlier) for row in begun.faults] == [
        (1.5, 2, gone.action, True),
        (2.5, 0, "all ranks began anew", True),
    ]
    resumed = make_metrics(SPEC, [header, *records[:40], commands.Drop(0, "x"), back, *records])
    assert [(row.rank, row.seconds, row.earlier) for row in resumed.faults[1:]] == [(2, 6.5, True), (1, 7.0, True)]
    for metrics in (begun, resumed):
        assert missing(metrics.faults) == set()
        assert not any("without rank" in warning for warning in metrics.warnings)
    assert begun.goodput is not None
    seconds = {name: part * begun.goodput.rank_seconds for name, part in begun.goodput.parts.model_dump().items()}
    plain = make_metrics(SPEC, [header, *records]).goodput
    assert plain is not None
    assert seconds["discarded"] == pytest.approx(3 * 5.0)
    assert begun.goodput.rank_seconds == pytest.approx(plain.rank_seconds + 3 * 10.0)
    assert seconds["repeated"] > 0 == plain.parts.repeated


def test_what_other_ranks_trained_in_vain_counts_for_each_of_them() -> None:
    """It counted for the number of ranks that the run goes on with: two of three."""
    resumed = events.Resumed(LAUNCHED, 3, 1, 64, "runs/x", since_s=(5.0, 0.0), ranks=3)
    pair = make_spec("nccl_cadence", 2)
    goodput = make_metrics(pair, [resumed, *make_records(pair)]).goodput
    assert goodput is not None
    assert goodput.parts.discarded * goodput.rank_seconds == pytest.approx(3 * 5.0)


def test_training_before_all_ranks_began_anew_began_once_all_were_ready_that_were_to_come(tmp_path: Path) -> None:
    """With a rank absent it was booked as starting."""
    ready = [events.Ready(2.0 + rank, rank, 64, 10, "d", "cpu", "gloo") for rank in (0, 1)]
    lines = [encode(record) for record in (Launched(1.0), *ready, events.Lost(9.0, 0, "gone"))]
    (tmp_path / EVENTS).write_bytes(b"\n".join([*lines, b""]))
    assert [attempt(tmp_path, 3, absent).begun for absent in (0, 1)] == [9.0, 3.0]


def test_what_a_run_that_ended_with_its_loss_discarded_was_not_trained_again() -> None:
    """Its goodput had as many repeated samples as discarded ones."""
    lost = bereft(events.Lost(0.0, 1, "its process is gone"), "its process is gone")
    at = next(index for index, record in enumerate(lost) if isinstance(record, commands.Drop))
    last = max(record.at for record in lost[:at] if isinstance(record, events.Progress))
    lost.insert(at, events.Progress(last, 1, 0, 3, 48, 0.1, 1.0, 0.1))
    at += 1
    ended = make_metrics(SPEC, [*lost[: at + 1], commands.Abort("failed", "rank 1: gone")], status="failed").goodput
    went_on = make_metrics(SPEC, lost).goodput
    assert ended is not None
    assert went_on is not None
    assert ended.parts.repeated == 0 < went_on.parts.repeated


def test_a_collective_that_broke_by_a_loss_that_ended_all_ranks_is_no_row_of_its_own() -> None:
    """Others may report the broken exchange before the death is noticed; then all ranks restart from a checkpoint."""
    broke = events.AverageFailed(102.9, 0, IN_STEP, "Connection closed by peer")
    gone = "its process is gone (killed by signal 9)"
    ended: list[Trouble] = [broke, events.Lost(103.0, 1, gone), commands.Abort("failed", f"rank 1: {gone}")]
    for records in (ended, [*ended[1:], broke]):
        (fault,) = rows([(103.0, record) for record in records], 100.0, 2)
        assert (fault.rank, fault.action) == (1, "ended the run")
        assert past([(103.0, record) for record in records], 100.0, 2, end=False) == ()
    abort = commands.Abort("failed", "gradients could not be exchanged: Connection closed by peer")
    (fault,) = rows([(103.0, broke), (103.1, abort)], 100.0, 2)
    assert (fault.rank, fault.kind, fault.action) == (None, "average_failed", "ended the run")


def test_what_two_attempts_after_one_checkpoint_cost_is_added_up() -> None:
    """Only the second one counted, and its loss seemed to come before the first."""
    one = events.Resumed(LAUNCHED, 3, 1, 64, "runs/x", "rank 1: gone", 48, (3.0, 1.0))
    two = events.Resumed(LAUNCHED, 3, 1, 64, "runs/x", "rank 2: gone", 16, (5.0, 1.0))
    both, last = (make_metrics(SPEC, [*back, *make_records(SPEC)]) for back in ([one, two], [two]))
    assert both.goodput is not None
    assert last.goodput is not None
    assert both.goodput.rank_seconds == pytest.approx(last.goodput.rank_seconds + 3 * 3.0)
    repeated = [each.goodput.parts.repeated * each.goodput.rank_seconds for each in (both, last) if each.goodput]
    assert repeated[0] > repeated[1]
    first, second = (row for row in both.faults if row.action.startswith("all ranks"))
    assert first.seconds < second.seconds
    assert "8.0 s after it was made" in second.action
