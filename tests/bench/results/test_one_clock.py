"""Every time that is shown of a run counts from its launch, and what ranks do of late is told over one time: the live page,
what is left of it, the terminal, the report, the timeline and the loggers, of one recorded run."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.base import number_format
from bench.command.printed.summary import CellOutcome, Summary, show_run
from bench.dashboard import view
from bench.dashboard.about import RUNNING, RunCard
from bench.dashboard.board import LIVE, ROW, whole
from bench.loggers import RunInfo
from bench.loggers.follow import Learning
from bench.loggers.recorded import Scalar, recorded, schedule
from bench.report import write_report
from bench.results.analysis.stream import sort
from bench.results.analysis.syncing import elche
from bench.results.live.history import RunHistory
from bench.results.runfolder import CONFIG, EVENTS, METRICS, find_runs, read_records
from bench.results.schema import Metrics
from bench.results.writer import RunWriter
from bench.runner.progress import ProgressDisplay
from bench.timeline import make_trace
from ddp.core.figures.summary import EpochFold
from ddp.core.messages import commands, events
from ddp.core.messages.run_bounds import Launched
from ddp.process.codec import Record, decode, encode
from ddp.trainer.epochs import EpochMetrics, epoch_metrics
from tests.bench.dashboard.test_dashboard_fold import folded
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.results.test_faults import SPEC, bereft
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec
from tests.bench.timeline.trace_rules import body_of

RUNS = Path(__file__).parents[3] / "benchmarks" / "golden" / "recorded"
STARTUP_S = 6.6
"""What tells one zero from another: so much later come the first records of the ranks."""


def run(raised: bool) -> list[Record]:
    """A run that loses rank 1, as it is recorded: its start-up is long."""
    said = events.Failed(0.0, 1, "ValueError: no", "Traceback") if raised else None
    return [Launched(LAUNCHED), *map(_later, bereft(said, "ValueError: no" if raised else "silent for 2.1 s"))]


def _later(record: Record) -> Record:
    return replace(record, at=record.at + STARTUP_S) if hasattr(record, "at") else record  # type: ignore[type-var]


def write(root: Path, records: list[Record]) -> RunWriter:
    """The run while it lasts."""
    writer = RunWriter(root, SPEC.model, SPEC.mode, SPEC.run_id)
    (writer.path / CONFIG).write_text(json.dumps({"model": SPEC.model, "world_size": 3, "train": {"epochs": 6}}))
    at, lines = LAUNCHED, []
    for record in records:
        at = getattr(record, "at", at)
        lines.append(encode(record, at) + b"\n")
    (writer.path / EVENTS).write_bytes(b"".join(lines))
    return writer


def shown(folder: Path, kind: str) -> Any:
    (piece,) = [json.loads(piece.text) for piece in whole(folder) if piece.kind == kind]
    return piece


def terminal(records: list[Record], metrics: Metrics) -> str:
    """What is said of the loss while the run lasts, and at its end."""
    out = io.StringIO()
    console = Console(file=out, width=400)
    with ProgressDisplay(SPEC, console, io.StringIO()) as monitor:
        for record in records:
            monitor.update(record)
    show_run(Summary(console), CellOutcome("it", 0, Path("it"), metrics))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("raised", [False, True])
def test_a_lost_rank_is_at_one_time_wherever_it_is_shown(raised: bool, tmp_path: Path) -> None:
    records = run(raised)
    writer, metrics = write(tmp_path, records), make_metrics(SPEC, records)
    (fault,) = metrics.faults
    assert fault.seconds > STARTUP_S
    known = view.short(fault.seconds)

    def page() -> list[Any]:
        live = shown(tmp_path, LIVE)
        return [*(row["seconds"] for row in live["faults"]), live["ranks"][1]["lost_s"]]

    assert page() == [known, known], "card and table, while it lasts"
    (writer.path / METRICS).write_text(metrics.model_dump_json())
    folder = writer.commit("ok")
    assert page() == [known, known], "card and table, when it is over"
    said = re.findall(r"([\d.]+) s after launch", terminal(records, metrics))
    assert said == [f"{fault.seconds:.1f}"] * 2, "while it lasts, and when it is over"
    report = write_report(folder, tmp_path / "report").read_text()
    section = report.partition("## Faults")[2].partition("\n## ")[0]
    (row,) = re.findall(r"\| *1 *\| *([\d.]+) *\|", section)
    assert row == f"{fault.seconds:.1f}"
    assert f"without rank 1 since {fault.seconds:.1f} s after launch" in "\n".join(metrics.warnings)
    trace = body_of(make_trace(sort(records, LAUNCHED), SPEC, LAUNCHED))
    marks = [e["ts"] / 1e6 for e in trace["traceEvents"] if e["name"] == "went on without rank 1"]
    assert marks == [pytest.approx(fault.seconds)]


def test_schedule_and_curves_count_from_the_launch(tmp_path: Path) -> None:
    """On the page, in the result and for loggers."""
    records = run(False)
    writer, metrics = write(tmp_path, records), make_metrics(SPEC, records)
    assert metrics.elche is not None
    live = shown(tmp_path, LIVE)
    plans = {plan["anchor"]: plan["seconds"] for plan in reversed(live["controller"]["plans"])}
    for plan in metrics.elche.plans:
        if plan.anchor in plans:
            assert plans[plan.anchor] <= plan.seconds + 1e-2
    assert [c["seconds"] for c in live["controller"]["closed"]] == [
        view.short(w.seconds) for w in metrics.elche.windows
    ]
    assert min(each.seconds for plan in metrics.elche.plans for each in schedule(plan, 0)) > STARTUP_S
    (writer.path / METRICS).write_text(metrics.model_dump_json())
    curve = [s for s in recorded(writer.commit("ok")).scalars if s.name == "rank0/samples_per_s"]
    assert min(scalar.seconds for scalar in curve) > STARTUP_S
    assert max(scalar.seconds for scalar in curve) < metrics.time_s.total + 0.5


def test_a_run_that_was_gone_on_with_keeps_its_zero() -> None:
    """Faults, schedule and timeline of the rest are told in the time of the whole."""
    spec = make_spec("nccl_cadence", 2, epochs=6)
    first = [Launched(LAUNCHED), *make_records(spec)]
    cut = max(record.at for record in first if hasattr(record, "at"))
    launched = cut + 10.0
    moved = [replace(r, at=r.at + launched - LAUNCHED) if hasattr(r, "at") else r for r in make_records(spec)]
    lost = events.Lost(launched + 1.5, 1, "its process is gone")
    records = [*first, events.Resumed(launched, 0, 3, 900, "runs/x"), *moved]
    place = next(i for i, r in enumerate(records) if getattr(r, "at", 0.0) > lost.at)
    records[place:place] = [lost, commands.Drop(1, "its process is gone")]
    stream = sort(records, launched)
    assert stream.zero == LAUNCHED
    whole_run = launched - LAUNCHED
    metrics = make_metrics(spec, records)
    assert [fault.seconds for fault in metrics.faults] == [pytest.approx(whole_run + 1.5)]
    assert metrics.elche is not None
    assert min(plan.seconds for plan in metrics.elche.plans) > whole_run
    trace = make_trace(stream, spec, launched)
    assert min(span[0] for spans in trace.lanes().values() for span in spans) == pytest.approx(whole_run * 1e9)
    state = folded(records)
    at = state.run.now
    assert state.run.since(at) == pytest.approx(at - LAUNCHED)
    live = view.live(RunCard("x", RUNNING, {"world_size": 2}), state)
    assert [row["seconds"] for row in live["faults"]] == [view.short(whole_run + 1.5)]
    assert view.row(RunCard("x", RUNNING, {"world_size": 2}), state)["seconds"] == view.short(at - launched)


def test_a_rank_that_was_lost_is_heard_again_when_the_run_is_gone_on_with() -> None:
    lost = [events.Ready(1.0, 1, 100, 5, "d", "cpu", "none"), commands.Drop(1, "silent")]
    assert folded(lost).run.ranks[1].lost == 1.0
    again = [events.Resumed(2.0, 0, 1, 50, "runs/x"), events.Progress(3.0, 1, 0, 1, 10, 0.1, 5.0, 0.1)]
    rank = folded([*lost, *again]).run.ranks[1]
    assert (rank.lost, rank.samples) == (None, 10)


def unequal(until: float) -> RunHistory:
    """Rank 0 trains 300 samples a second and says so every 0.3 s, rank 1 trains 100 and says so every 1.1 s."""
    told: list[events.Progress] = []
    for rank, every, rate in ((0, 0.3, 300), (1, 1.1, 100)):
        for n in range(1, int((until - 5.0) / every) + 1):
            at = 5.0 + n * every
            told.append(events.Progress(at, rank, 0, 1, round(rate * every), 0.9 * every, 5.0, 0.1))
    ready = [events.Ready(5.0, rank, 10**6, 5, "d", "cpu", "none") for rank in (0, 1)]
    return folded([Launched(0.0), *ready, *sorted(told, key=lambda record: record.at)])


@pytest.mark.parametrize("until", [6.2, 7.0, 9.9, 30.0, 200.0, 1000.0])
def test_the_figure_of_a_run_is_the_sum_of_its_ranks_over_the_time_that_is_named(until: float) -> None:
    state, about = unequal(until), RunCard("x", RUNNING, {"world_size": 2})
    row, live = view.row(about, state), view.live(about, state)
    rates = [rank["samples_per_s"] for rank in live["ranks"]]
    assert rates == [pytest.approx(300, rel=0.01), pytest.approx(100, rel=0.01)]
    assert row["samples_per_s"] == sum(rates)
    assert row["over"] == live["over"]
    begin, end = map(float, re.fullmatch(r"from ([\d.]+) to ([\d.]+) s", live["over"]).groups())  # type: ignore[union-attr]
    assert 5.0 <= begin < end <= until
    assert [rank["share"] for rank in live["ranks"]] == [pytest.approx(0.75, rel=0.01), pytest.approx(0.25, rel=0.01)]


def test_before_all_ranks_have_told_of_anything_there_is_no_figure() -> None:
    state, about = unequal(5.5), RunCard("x", RUNNING, {"world_size": 2})
    assert (view.row(about, state)["samples_per_s"], view.live(about, state)["over"]) == (None, None)
    assert [rank["samples_per_s"] for rank in view.live(about, state)["ranks"]] == [None, None]


@pytest.mark.parametrize("raised", [False, True])
def test_when_it_is_over_the_figures_are_those_of_the_result(raised: bool, tmp_path: Path) -> None:
    records = run(raised)
    writer, metrics = write(tmp_path, records), make_metrics(SPEC, records)
    (writer.path / METRICS).write_text(metrics.model_dump_json())
    writer.commit("ok")
    row, live = shown(tmp_path, ROW), shown(tmp_path, LIVE)
    rates = [rank["samples_per_s"] for rank in live["ranks"]]
    assert rates == [pytest.approx(rate, rel=1e-3) for rate in metrics.throughput.per_rank]
    assert row["samples_per_s"] == sum(rates) == pytest.approx(metrics.throughput.samples_per_s, rel=1e-3)
    assert row["over"] == live["over"] == f"over {metrics.time_s.train:.1f} s of training"


RECORDED = sorted(path.parent for path in RUNS.rglob(METRICS))
"""A run of every policy on every backend, slow ranks and a lost one among them; and one alone."""


def arrivals(folder: Path) -> list[Record]:
    """The records of a run in the order in which they were known to it, which is not that of their times."""
    lines = [(json.loads(line).get("n"), line) for line in (folder / EVENTS).read_bytes().splitlines()]
    return [decode(line) for _, line in sorted((n, line) for n, line in lines if n is not None)]


def handed_out(records: list[Record], epochs: int, devices: tuple[str, ...]) -> list[EpochMetrics]:
    """What a trainer is told of the epochs, as they end."""
    fold, before, told = EpochFold(epochs), 0.0, list[EpochMetrics]()
    for epoch in [each for record in records for each in fold.add(record)] + fold.end():
        told.append(epoch_metrics(epoch, before, devices))
        before = epoch.seconds
    return told


def logged(records: list[Record], metrics: Metrics) -> set[Scalar]:
    """What loggers are told while the run lasts."""
    learning = Learning(RunInfo("", "", "", "", metrics.world_size, metrics.final.eval_metric))
    for record in records:
        learning.add(record)
    return set(learning.scalars)


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: "-".join(folder.parts[-3:-1]))
@pytest.mark.parametrize("live", [True, False], ids=["as they came", "in the order of time"])
def test_terminal_page_trainer_and_loggers_tell_what_the_result_says(folder: Path, live: bool) -> None:
    """Of every kind of run, to the last bit: whoever tells of an epoch has it from one fold."""
    (run,) = find_runs(folder)[0]
    metrics, records = run.metrics, arrivals(folder) if live else list(read_records(folder))
    told = [(row.epoch, row.train_loss, row.eval, row.eval_loss, row.lr, row.scalars) for row in metrics.epochs]
    trained = handed_out(records, metrics.epochs_planned, tuple(metrics.devices))
    assert [(e.epoch, e.loss, e.eval, e.eval_loss, e.lr, e.scalars) for e in trained] == told
    assert sum(e.seconds for e in trained) == pytest.approx(metrics.epochs[-1].seconds)
    history = folded(records)
    seen = [(e.epoch, e.loss, e.eval, e.eval_loss, e.lr, {}) for e in history.epochs]
    assert seen == told
    assert [(e.seen, e.seconds) for e in history.epochs] == [(row.samples, row.seconds) for row in metrics.epochs]
    assert (history.run.samples, history.run.steps) == (metrics.samples, metrics.steps)
    card = RunCard("a/b/c", RUNNING, run.config)
    row, over = view.row(card, history), view.row(replace(card, status="ok", metrics=metrics), history)
    for name in ("epoch", "epochs", "loss", "eval", "lr", "progress", "lost"):
        assert row[name] == over[name], name
    out = io.StringIO()
    spec = make_spec(folder.parent.name, metrics.world_size, epochs=metrics.epochs_planned)
    with ProgressDisplay(spec, Console(file=out, width=400), io.StringIO()) as monitor:
        for record in records:
            monitor.update(record)
    lines = re.findall(r"epoch +(\d+)/\d+  loss (\S+)  accuracy (\S+)", out.getvalue())
    assert lines == [
        (str(row.epoch + 1), number_format.metric(row.train_loss), number_format.metric(row.eval))
        for row in metrics.epochs
        if row.eval is not None
    ]
    in_time = list(read_records(folder))
    schedule_rows = elche(sort(in_time, in_time[0].at))  # type: ignore[union-attr]
    plans = [schedule(plan, step) for step, plan in enumerate(schedule_rows.plans if schedule_rows else ())]
    parts = ("train/", "eval/")
    learnt = {s for s in recorded(folder).scalars if s.name.startswith(parts) and s.name != "train/loss_within_epochs"}
    told_live, whole = logged(records, metrics), learnt.union(*plans)
    if not live:
        assert told_live == whole
    # A plan has no time of its own: it is that of the event before it, which is another one in another order.
    assert {scalar[:3] for scalar in told_live} == {scalar[:3] for scalar in whole}
    assert {scalar for scalar in told_live if scalar.name.startswith(parts)} == learnt


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: "-".join(folder.parts[-3:-1]))
def test_the_parts_of_an_epoch_make_the_whole(folder: Path) -> None:
    """By rank: samples and steps; and of the run, the samples of its epochs."""
    history = folded(list(read_records(folder)))
    for epoch in history.epochs:
        assert sum(epoch.rank_samples.values()) == epoch.samples
    assert sum(epoch.samples for epoch in history.epochs) == history.run.samples
    assert sum(rank.samples for rank in history.run.ranks.values()) == history.run.samples
    assert sum(steps for epoch in history.epochs for steps in epoch.rank_steps.values()) == history.run.steps
