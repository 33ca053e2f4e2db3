"""Lost ranks and the ledger: from records to result, report and verdict."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from bench.base.console import VERBOSITY
from bench.base.exitcodes import Exit
from bench.command.printed import summary
from bench.report import write_report
from bench.results.analysis.faults import faults, raised
from bench.results.analysis.stream import sort
from bench.results.rerun_command import command
from bench.results.runfolder import find_runs
from bench.results.schema import Metrics, json_schema
from bench.runner.progress import ProgressDisplay
from bench.timeline import make_trace, write_timeline
from bench.validate import judge
from ddp.core.messages import commands, events
from ddp.core.messages.join_events import Joined
from ddp.core.settings.faults import parse
from ddp.process.codec import Record
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec, write_run
from tests.bench.timeline.trace_rules import body_of, violations

SPEC = make_spec("nccl_cadence", 3, faults=(parse("1@40:crash"),), epochs=6)


def bereft(last_words: events.Failed | events.Lost | None = None, reason: str = "silent for 2.1 s") -> list[Record]:
    """A run that loses rank 1 half way: rank 0 brings in what rank 1 would have."""
    records = make_records(SPEC)
    cut = len(records) // 2
    at = max(record.at for record in records[:cut] if isinstance(record, events.Progress))
    kept: list[Record] = []
    for record in records[cut:]:
        if getattr(record, "rank", None) != 1:
            kept.append(record)
        elif isinstance(record, events.Merged):
            kept.append(replace(record, rank=0))
    said = [] if last_words is None else [replace(last_words, at=at)]
    broke = [events.AverageFailed(at, rank, 7, "connection closed") for rank in (0, 2)]
    join = [commands.Join(rank, 1, (0, 2), False, "ranks that can meet") for rank in (0, 2)]
    return [*records[:cut], *said, commands.Drop(1, reason), *broke, *join, *kept]


def test_a_lost_rank_is_one_row_that_says_what_happened_and_what_was_done() -> None:
    metrics = make_metrics(SPEC, bereft(events.Lost(0.0, 1, "its process is gone"), "its process is gone"))
    (fault,) = metrics.faults
    assert (fault.rank, fault.kind, fault.text) == (1, "lost", "its process is gone")
    assert fault.action.startswith("went on with ranks 0 and 2")
    assert 0 < fault.seconds < metrics.time_s.total
    assert metrics.status == "ok"
    assert f"without rank 1 since {fault.seconds:.1f} s" in "\n".join(metrics.warnings)
    assert metrics.scripted_faults == ["1@40:crash"]
    jsonschema.validate(json.loads(metrics.model_dump_json()), json.loads(json_schema()))


def test_what_each_loss_of_a_rank_costs_is_its_own() -> None:
    """Each row of a rank that was lost twice had the samples of both losses."""
    gone, way = "its process is gone", (0.1, 1.0, 0.1)
    records: list[Record] = [
        events.Progress(1.0, 1, 0, 4, 64, *way),
        *(events.Lost(2.0, 1, gone), commands.Drop(1, gone), Joined(3.0, 1, 0)),
        events.Progress(4.0, 1, 0, 3, 48, *way),
        events.Merged(4.5, 1, 0, ((0, 16),)),
        *(events.Lost(5.0, 1, gone), commands.Drop(1, gone)),
    ]
    for more, end in (([], "lost"), ([events.Merged(6.0, 0, 0, ((16, 48),))], "trained again")):
        first, second = faults(sort([*records, *more], 0.0), 3)
        assert first.action == "went on with ranks 0 and 2; back 1.0 s later; 64 of its samples were trained again"
        assert second.action == f"went on with ranks 0 and 2; 32 of its samples were {end}"


@pytest.mark.parametrize(
    ("words", "reason", "kind", "text"),
    [
        (events.Failed(0.0, 1, "ValueError: no", "Traceback"), "ValueError: no", "failed", "ValueError: no"),
        (None, "silent for 2.1 s", "silent", "silent for 2.1 s"),
        (None, "it speaks of what it was not asked", "dropped", "it speaks of what it was not asked"),
    ],
)
def test_kinds_of_losses(words: events.Failed | None, reason: str, kind: str, text: str) -> None:
    (fault,) = make_metrics(SPEC, bereft(words, reason)).faults
    assert (fault.kind, fault.text) == (kind, text)


def test_a_collective_that_broke_without_a_loss_is_one_row_and_costs_no_warning() -> None:
    broke = [events.AverageFailed(103.0, rank, 4, "timed out") for rank in (0, 1, 2)]
    joins = [commands.Join(rank, 1, (0, 1, 2), False, "ranks that can meet") for rank in (0, 1, 2)]
    metrics = make_metrics(SPEC, [*make_records(SPEC), *broke, *joins])
    (fault,) = metrics.faults
    assert (fault.rank, fault.kind) == (None, "average_failed")
    assert fault.text == "round 4 broke on ranks 0, 1 and 2: timed out"
    assert not any("without rank" in warning for warning in metrics.warnings)


def test_a_loss_that_ends_the_run_is_named() -> None:
    abort = commands.Abort("failed", "rank 2: silent for 60.1 s")
    (fault,) = make_metrics(SPEC, [*make_records(SPEC)[:99], abort], status="failed").faults
    assert (fault.rank, fault.kind, fault.action) == (2, "silent", "ended the run")


def test_what_a_rank_says_after_it_was_given_up_counts_for_nothing() -> None:
    records = bereft()
    late = events.Progress(300.0, 1, 0, 5, 160, 1.0, 1.0, 0.1)
    last = max(i for i, record in enumerate(records) if isinstance(record, events.Progress))
    assert make_metrics(SPEC, [*records[:last], late, *records[last:]]).samples == make_metrics(SPEC, records).samples


def test_figures_of_a_run_with_a_lost_rank_are_sane() -> None:
    metrics = make_metrics(SPEC, bereft())
    rates, times = metrics.throughput, metrics.time_s
    assert rates.samples_per_s is not None
    assert sum(rates.per_rank) == pytest.approx(rates.samples_per_s)
    assert 0 < rates.per_rank[1] < rates.per_rank[0]
    assert rates.efficiency is not None
    assert 0.5 < rates.efficiency <= 1.05
    assert times.rank_wall[1] < 0.7 * times.rank_wall[0]
    for rank in metrics.breakdown:
        assert sum(rank.model_dump().values()) == pytest.approx(1)
    assert metrics.breakdown[1].other < 0.2, "the wall time of a lost rank ends with what it measured"
    assert metrics.throughput.steady is not None
    assert metrics.throughput.steady.waiting_or_communicating[1] is None


def test_what_a_lost_rank_did_not_bring_in_is_no_speed() -> None:
    records = bereft()
    unmerged = [each for each in records if not (isinstance(each, events.Merged) and each.rank == 1)]
    rates = make_metrics(SPEC, unmerged).throughput
    assert rates.per_rank[1] == 0 < make_metrics(SPEC, records).throughput.per_rank[1]
    assert rates.samples_per_s == pytest.approx(sum(rates.per_rank))


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_that_a_lost_rank_left_incomplete_is_null_and_no_defect(tmp_path: Path) -> None:
    gone = {(e.epoch, e.rank) for e in bereft() if isinstance(e, events.Evaluated)}
    metrics = make_metrics(SPEC, bereft())
    assert metrics.epochs[0].eval is not None
    assert [row.eval is None for row in metrics.epochs] == [(row.epoch, 1) not in gone for row in metrics.epochs]
    write_run(tmp_path / "runs", SPEC, metrics)
    assert "## Faults" in write_report(tmp_path / "runs", tmp_path / "out").read_text()


def test_report_and_verdict_speak_of_the_loss(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", SPEC, make_metrics(SPEC, bereft()))
    for seed in range(2):
        write_run(tmp_path / "runs", make_spec("solo", seed=seed, epochs=6))
    text = write_report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "- fault: mlp nccl_cadence ×3 with 1@40:crash, seed 0: rank 1, silent for 2.1 s; went on with" in text
    parts = [text.split(f"## {name}\n")[1].split("\n## ")[0] for name in ("Comparison", "Weak scaling")]
    rows = [
        line for part in parts for line in part.splitlines() if line.startswith("| nccl_cadence ×3 with 1@40:crash †")
    ]
    assert len(rows) == 2, "in the comparison and in the scaling"
    assert text.count("† A rank was lost") == 2
    assert "**Faults were made on purpose** in 1 of 3 runs" in text
    verdicts = {v.check: v for v in judge([folder], tmp_path / "none.json").verdicts}
    assert verdicts["status"].name == "PASS"
    assert "lost rank 1 (silent for 2.1 s) and went on with ranks 0 and 2" in verdicts["status"].line
    assert verdicts["ledger"].name == "PASS"


def test_a_rank_that_raised_is_told_of_before_all_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That it was tolerated makes it no loss of a machine, and no run to trust."""
    words = events.Failed(0.0, 1, "ValueError: no", "Traceback")
    metrics = make_metrics(SPEC, bereft(words, "ValueError: no"))
    folder = write_run(tmp_path / "runs", SPEC, metrics)
    said = "rank 1 raised ValueError: no, and the run went on without it"
    printed = summary.Summary(Console(width=200))
    summary.show_run(printed, summary.CellOutcome("a", Exit.OK, folder, metrics))
    assert capsys.readouterr().out.strip().splitlines()[0] == f"error     {said}"
    summary.show_sweep(printed, [summary.CellOutcome("a", Exit.OK, folder, metrics)])
    assert "1 ok, a rank failed " in capsys.readouterr().out
    summary.judge(printed, tmp_path / "runs", tmp_path / "none", [folder])
    assert capsys.readouterr().out.splitlines()[0].startswith(f"verdict   {said}; ")
    (verdict,) = [v for v in judge([folder], tmp_path / "none.json").verdicts if v.check == "status"]
    assert (verdict.name, verdict.line.split(";")[0]) == ("FAIL", f"seed 0: {said}")


def test_a_flipped_bit_is_no_exception(tmp_path: Path) -> None:
    words = "its parameters are not those of ranks 0, 2: a bit has flipped"
    metrics = make_metrics(SPEC, bereft(events.Failed(0.0, 1, words, words), words))
    assert raised(metrics.faults) == [f"rank 1: {words}, and the run went on without it"]


def test_a_machine_that_is_lost_is_no_error_of_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = make_metrics(SPEC, bereft(events.Lost(0.0, 1, "gone"), "gone"))
    summary.show_run(summary.Summary(Console(width=200)), summary.CellOutcome("a", Exit.OK, tmp_path, metrics))
    assert not any(line.startswith("error") for line in capsys.readouterr().out.splitlines())
    write_run(tmp_path / "runs", SPEC, metrics)
    (verdict,) = [v for v in judge([tmp_path / "runs"], tmp_path / "none.json").verdicts if v.check == "status"]
    assert verdict.line.startswith("1 ok; seed 0 lost rank 1")


def test_the_traceback_of_an_error_that_ends_the_run_later_is_in_the_log_once() -> None:
    log, seen, trace = io.StringIO(), io.StringIO(), "Traceback: where"
    with ProgressDisplay(SPEC, Console(file=io.StringIO()), log) as monitor:
        for record in bereft(events.Failed(0.0, 1, "ValueError: no", f"{trace}\n"), "ValueError: no"):
            monitor.update(record)
        monitor.say(trace, on=Console(file=seen))
    assert log.getvalue().count(trace) == seen.getvalue().count(trace) == 1


def test_the_command_brings_the_faults_back(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", SPEC, make_metrics(SPEC, bereft()))
    assert " 'cluster.faults=[1@40:crash]' cluster.deadline_s=60 " in command(find_runs(tmp_path / "runs")[0])


def test_a_loss_is_marked_in_the_timeline(tmp_path: Path) -> None:
    records = bereft()
    trace = body_of(make_trace(sort(records, LAUNCHED), SPEC, LAUNCHED))
    marks = [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"]
    assert "Drop: silent for 2.1 s" in marks
    assert "went on without rank 1" in marks
    assert violations(trace) == []
    write_timeline(tmp_path, records, SPEC, LAUNCHED)
    assert (tmp_path / "timeline.png").stat().st_size > 10_000


def test_a_person_is_told_at_once_and_the_log_holds_the_traceback() -> None:
    seen, log = io.StringIO(), io.StringIO()
    with ProgressDisplay(SPEC, Console(file=seen), log) as monitor:
        for record in bereft(events.Failed(0.0, 1, "ValueError: no", "Traceback: where"), "ValueError: no"):
            monitor.update(record)
    assert "s after launch: ValueError: no; going on with ranks 0, 2" in seen.getvalue()
    assert "Traceback: where" in log.getvalue()
    assert "Traceback: where" not in seen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_are_cut_in_a_terminal_and_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv(VERBOSITY, "1")
    seen, log = io.StringIO(), io.StringIO()
    line = "anchor 12, steps " + "/".join(["12"] * 64)
    ProgressDisplay(SPEC, Console(file=seen, force_terminal=terminal, width=80), log).log(line)
    assert (seen.getvalue().strip() == line) is not terminal
    assert log.getvalue() == f"{line}\n"


def test_the_ledger_proves_that_every_sample_was_trained_once() -> None:
    ledger = make_metrics(SPEC, bereft()).ledger
    assert ledger is not None
    assert (ledger.source, ledger.exactly_once, len(ledger.epochs)) == ("merged", True, 6)
    assert all(sum(row.by_rank) == row.samples == ledger.samples for row in ledger.epochs)
    assert ledger.epochs[-1].by_rank[1] == 0


def test_one_rank_is_counted() -> None:
    ledger = make_metrics(make_spec("solo")).ledger
    assert ledger is not None
    assert (ledger.source, ledger.exactly_once) == ("counted", True)


def spoilt(how: str) -> Metrics:
    """A run whose record of epoch 1 is wrong."""
    records = make_records(SPEC)
    index = next(i for i, r in enumerate(records) if isinstance(r, events.Merged) and r.epoch == 1)
    line = records[index]
    assert isinstance(line, events.Merged)
    spoiled: list[Record] = [] if how == "missing" else [line, replace(line, rank=2)]
    return make_metrics(SPEC, [*records[:index], *spoiled, *records[index + 1 :]])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("how", "said"), [("missing", "160 samples never trained, 0"), ("twice", "0 samples never trained, 160")]
)
def test_a_run_whose_ledger_is_wrong_fails(tmp_path: Path, how: str, said: str) -> None:
    metrics = spoilt(how)
    assert metrics.ledger is not None
    assert not metrics.ledger.exactly_once
    write_run(tmp_path / "runs", SPEC, metrics)
    (verdict,) = [v for v in judge([tmp_path / "runs"], tmp_path / "none.json").verdicts if v.check == "ledger"]
    assert verdict.name == "FAIL"
    assert f"epoch 1: {said}" in verdict.line
    assert "in **0 of 1 finished run**" in write_report(tmp_path / "runs", tmp_path / "out").read_text()


def test_epochs_that_were_never_trained_are_missed() -> None:
    records = [r for r in make_records(SPEC) if not (isinstance(r, events.Merged) and r.epoch == 5)]
    ledger = make_metrics(SPEC, records).ledger
    assert ledger is not None
    assert not ledger.exactly_once


def test_results_from_before_there_were_ledgers_are_read() -> None:
    body = make_metrics(make_spec()).model_dump()
    del body["ledger"], body["scripted_faults"], body["throughput"]["steady"]
    body["faults"] = [{"seconds": 1.0, "rank": 1, "kind": "lost", "text": "gone"}]
    assert Metrics.model_validate(body).ledger is None
