"""`ddp.Monitor` and `ddp.Timeline` with graphs and with loops of one's own; schedulers."""

from __future__ import annotations

import errno
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau

import ddp
from ddp.core.messages.events import Memory, Slice
from ddp.monitor.monitor import _finish_all as finish_all
from ddp.monitor.track import RunSubject, RunTrack
from ddp.process.codec import encode
from tests.api.conftest import Make
from tests.api.watched import check_timeline, of_page, pieces
from tests.graph.several import backward, on
from tests.runtime import toy


@pytest.mark.parametrize("size", [1, 2])
def test_a_graph_is_watched_and_timed(size: int, tmp_path: Path) -> None:
    x, y = toy.data(40)
    x = torch.cat([x, x[:, :2]], dim=1)
    timeline = ddp.Timeline(20)
    graph = on(size, timeline=timeline)
    width = next(graph.parameters()).shape[1]
    x = x[:, :width]
    with ddp.Monitor(epochs=2) as monitor:
        monitor.watch(graph)
        for epoch in range(2):
            began = time.monotonic()
            for part in range(0, 40, 20):
                loss = backward(graph, x[part : part + 20], y[part : part + 20])
                graph.step()
            monitor.log(epoch, time.monotonic() - began, graph, loss=float(loss), eval=0.5, gain=epoch)
    timeline.stop()
    live = pieces(monitor.save_html(tmp_path / "page.html"))
    assert live["row"]["status"] == "ok"
    assert [(epoch["samples"], epoch["eval"]) for epoch in live["live"]["epochs"]] == [(40, 0.5), (80, 0.5)]
    assert live["live"]["epochs"][-1]["loss"] == pytest.approx(float(loss), rel=1e-3)
    assert len(live["live"]["ranks"]) == size
    assert len(live["about"]["graph"]["nodes"]) > 2
    check_timeline(timeline, tmp_path, {"forward", "backward", "optimizer"}, set(range(size)))
    assert any(line.startswith(b'{"type":"Memory"') for line in timeline._runs[-1].lines())


def test_a_loop_of_ones_own_is_watched_and_timed(tmp_path: Path) -> None:
    model, data = toy.net(norm=False), toy.data(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor, timeline = ddp.Monitor(epochs=3), ddp.Timeline()
    monitor.watch(model)
    with timeline:
        for epoch in range(3):
            with timeline.measure("forward"):
                loss = train_step_alone(model, data)
            with timeline.measure("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            with timeline.measure("optimizer"):
                optimizer.step()
            monitor.log(epoch, 0.1, {"loss": loss, "accuracy": 0.25, "samples": 32}, lr=0.1)
    monitor.finish()
    shown = pieces(monitor.save_html(tmp_path / "page.html"))
    assert shown["row"] | {"status": "ok", "epoch": 3, "epochs": 3, "model": "Sequential"} == shown["row"]
    assert [epoch["samples"] for epoch in shown["live"]["epochs"]] == [32, 64, 96]
    check_timeline(timeline, tmp_path, {"forward", "backward", "optimizer"}, {0})


def test_a_loop_of_ones_own_may_have_several_ranks(tmp_path: Path) -> None:
    timeline = ddp.Timeline()
    with timeline:
        for rank in (0, 1, 0):
            with timeline.measure("forward", rank):
                time.sleep(0.01)
    given: list[Any] = [-1, "a", True, 1.0, 5000]
    for wrong in given:
        with pytest.raises(ValueError, match="rank="), timeline.measure("forward", rank=wrong):
            pass
    events = json.loads(timeline.save_json(tmp_path / "timeline.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    shown = [names[event["pid"]] for event in events if event["name"] == "forward"]
    assert [name[:6] for name in shown] == ["rank 0", "rank 1", "rank 0"]
    assert not any("never ready" in name for name in names.values())
    assert min(event["dur"] for event in events if event["name"] == "forward") >= 9e3
    assert len(names) == 3
    check_timeline(timeline, tmp_path, {"forward"}, {0, 1})


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (RuntimeError("no more\nat all"), ("failed", "no more")),
        (KeyboardInterrupt(), ("killed", "interrupted")),
        (ddp.Diverged("the loss is nan"), ("diverged", "the loss is nan")),
        (SystemExit("enough"), ("failed", "enough")),
        (SystemExit(0), ("ok", None)),
    ],
)
@pytest.mark.parametrize("caught", [True, False])
def test_a_loop_that_raises_ends_with_its_error(
    error: BaseException, end: tuple[str, str | None], caught: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended on the page as `ok`, with a full bar."""

    def train(monitor: ddp.Monitor) -> None:
        monitor.log(0, 0.1, loss=1.0)
        raise error

    if caught:
        with pytest.raises(type(error)), ddp.Monitor(epochs=4) as monitor:
            train(monitor)
    else:
        monitor = ddp.Monitor(epochs=4)
        monitor.log(0, 0.1, loss=1.0)
        monkeypatch.delattr(sys, "ps1", raising=False)
        monkeypatch.setattr(sys, "last_value", error, raising=False)  # as at the end of the process
        finish_all()
    shown = pieces(monitor.save_html(tmp_path / "page.html"))
    assert (shown["row"]["status"], shown["about"]["result"]["error"]) == end
    assert (shown["row"]["progress"] == 1.0) is (end[0] == "ok")


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("samples", [1000, None])
def test_speeds_of_a_loop_of_ones_own_are_those_of_its_epochs(
    watched: bool, samples: int | None, tmp_path: Path
) -> None:
    """The first epoch took no time, and one without `samples` had a speed all the same."""
    monitor = ddp.Monitor(epochs=2)
    if watched:
        monitor.watch(nn.Linear(4, 2))
    for epoch in range(2):
        time.sleep(0.25)
        monitor.log(epoch, 0.25, {"loss": 1.0 - epoch, "samples": samples})
        live = pieces(monitor.save_html(tmp_path / "page.html"))
        assert live["live"]["epochs"][0]["seconds"] == pytest.approx(0.25, abs=0.1)
        assert [each["loss"] for each in live["live"]["epochs"]] == [1.0, 0.0][: epoch + 1]
        (rank,) = live["live"]["ranks"]
        assert rank["state"] == "training"
        if samples:
            assert 0 < live["row"]["samples_per_s"] < 4100  # no more than 1000 in 0.25 s
            assert live["row"]["samples_per_s"] == rank["samples_per_s"]
    monitor.finish()
    ended = pieces(monitor.save_html(tmp_path / "page.html"))
    assert ended["row"]["status"] == "ok"
    assert ended["about"]["result"]["time_s"]["train"] >= 0.5
    for shown in (live, ended):
        told = [
            shown["row"]["samples_per_s"],
            *(shown["live"]["ranks"][0][name] for name in ("samples_per_s", "speed")),
        ]
        told += shown["live"]["curves"]["ranks"]["all"]["samples_per_s"]
        assert any(value is not None for value in told) == (samples is not None)


def train_step_alone(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_one_scheduler_means_the_same_in_the_builder_and_in_a_graph(make: Make) -> None:
    epochs, samples = 4, toy.SAMPLES
    schedule = ddp.LRSchedule(lambda optimizer: MultiStepLR(optimizer, [1, 3], gamma=0.1), steps=epochs)
    handle = make(world_size=1, epochs=epochs, schedule=schedule).run()
    built = [m.lr for m in iter(handle.next_metrics, None)]
    handle.join()
    model = toy.net(norm=False)
    graph = ddp.FlowBuilder.from_(model).build()
    graph.set_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    graph.set_scheduler(schedule, samples=epochs * samples)
    x, y = toy.data()
    graphs = []
    for _ in range(epochs):
        for part in range(0, samples, 8):
            backward(graph, x[part : part + 8], y[part : part + 8])
            graph.step()
        graphs.append(graph.lr())
    assert graphs == pytest.approx(built)
    assert built == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_schedulers_of_torch_keep_their_rates_and_what_is_none_says_so() -> None:
    schedule = ddp.LRSchedule(lambda o: OneCycleLR(o, 0.5, total_steps=10, cycle_momentum=False), steps=10, lr=0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = OneCycleLR(optimizer, 0.5, total_steps=10, cycle_momentum=False)
    for step in range(10):
        assert 0.1 * schedule(step / 10) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        if step < 9:
            scheduler.step()
    assert schedule(1.0) == schedule(0.99)
    with pytest.raises(ValueError, match="without a loss"):
        ddp.LRSchedule(ReduceLROnPlateau, steps=3)
    with pytest.raises(ValueError, match="cycle_momentum=False"):
        ddp.LRSchedule(lambda o: OneCycleLR(o, 0.5, total_steps=10), steps=5)
    with pytest.raises(ValueError, match="cycle_momentum=False"):  # the momentum is as before after two whole cycles
        ddp.LRSchedule(lambda o: CyclicLR(o, 0.01, 0.1, step_size_up=5), steps=20, lr=0.1)
    with pytest.raises(ValueError, match="absolute rates"):
        ddp.LRSchedule(lambda o: OneCycleLR(o, 0.5, total_steps=10, cycle_momentum=False), steps=10)
    with pytest.raises(ValueError, match="goes by samples"):
        on(1).set_scheduler(schedule)


def test_a_full_disk_ends_what_is_measured_beside_and_not_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread says so once; what goes on in the loop is not its business."""

    def full(track: RunTrack) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunTrack, "measure", full)
    timeline = ddp.Timeline(poll_ms=1.0)
    with timeline.measure("forward"):
        pass
    said = ""
    until = time.monotonic() + 20.0
    while not said and time.monotonic() < until:
        time.sleep(0.01)
        said = capsys.readouterr().err
    with timeline.measure("backward"):
        pass
    with pytest.raises(OSError, match="No space"):
        timeline.stop()
    assert said == "ddp-timeline: measures no more: [Errno 28] No space left on device\n"


def test_a_look_at_one_kind_of_records_leaves_the_others_for_later(tmp_path: Path) -> None:
    """What a live look passed over was lacking in the end: all slices but those of the last half second."""
    lines = [encode(Slice(1.0, 0, "forward", 0.5)), encode(Memory(2.0, 0, 1 << 20, 1.0))]
    (tmp_path / "slices-0.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    track = RunTrack(RunSubject("m", "solo", ("cpu",)))
    track.collect(tmp_path, kinds=(b'{"type":"Memory"',))
    assert track.lines() == lines[1:]
    for _ in range(2):
        track.collect(tmp_path)
        assert track.lines() == lines


def test_runs_that_have_ended_keep_no_open_files(tmp_path: Path) -> None:
    """Each had one, until the process could open no more."""
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    count, subject = len(list(folder.iterdir())), RunSubject("m", "solo", ("cpu",))
    monitor, timeline = ddp.Monitor(1), ddp.Timeline()
    for place in range(20):
        monitor.watch(nn.Linear(2, 2))
        monitor.log(0, 0.1, loss=float(place))
        track = timeline.begin(subject)
        track(Slice(1.0, 0, "forward", 0.1 * place), 1.0)
        timeline.end(track)
    monitor.finish()
    timeline.stop()
    assert len(list(folder.iterdir())) < count + 10
    text = monitor.save_html(tmp_path / "page.html").read_text()
    bodies = [piece["body"] for piece in of_page(text) if piece["kind"] == "row"]
    assert sorted(body["loss"] for body in bodies) == [float(place) for place in range(20)]
    late = Slice(0.5, 0, "backward", 0.1)
    track(late, 0.5)
    assert track.lines() == [encode(late, 0.5), encode(Slice(1.0, 0, "forward", 0.1 * 19), 1.0)]
    assert timeline._runs[3].lines() == [encode(Slice(1.0, 0, "forward", 0.1 * 3), 1.0)]


class Scaled(nn.Module):
    """Takes a number as a tensor, and all by keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(6, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.projection(x) * scale


@pytest.mark.parametrize("named", [True, False])
def test_a_picture_is_of_any_arguments_and_costs_no_loop(named: bool, tmp_path: Path) -> None:
    model, monitor = Scaled(), ddp.Monitor(1)
    monitor.watch(model)
    x, scale = torch.ones(4, 6), torch.tensor(2.0)
    model(x=x, scale=scale) if named else model(x, scale)
    monitor.log(0, 0.1, {"loss": 1.0})
    monitor.finish()
    assert "projection" in monitor.save_html(tmp_path / "page.html").read_text()
