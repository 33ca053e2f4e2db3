"""`ddp.Monitor` and `ddp.Timeline` with the builder."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

import ddp
from ddp.monitor.harness import page_maker
from ddp.monitor.track import RunSubject
from ddp.trainer.observers import RunObservers
from tests.api.conftest import Make, right
from tests.api.watched import check_timeline, pieces
from tests.bench.dashboard.dashboards import messages, until
from tests.runtime import toy
from tests.warm import Warm, wait_for


def train_step(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    ddp.record_scalar("train_acc", (logits.argmax(1) == batch[1]).double().mean())
    return nn.functional.cross_entropy(logits, batch[1])


@pytest.fixture
def in_turn(in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in this process, whose random generators they share with who looks at the model."""
    begin = RunObservers.__init__

    def here(self: RunObservers, subject: Any, sketch: Any, timeline: Any, in_place: bool) -> None:
        begin(self, subject, sketch, timeline, in_place=True)

    monkeypatch.setattr(RunObservers, "__init__", here)


@pytest.mark.usefixtures("in_turn")
def test_the_first_example_of_the_seeds(make: Make, tmp_path: Path) -> None:
    """Builder, timeline, monitor, scheduler and record_scalar, as the worked example wires them."""
    epochs = 4
    timeline = ddp.Timeline(100)
    timeline.start()
    trainer = make(
        train_step=train_step,
        epochs=epochs,
        policy="cadence",
        backend="nccl",
        max_grad_norm=5.0,
        lr_scale_ratio=1.0,
        timeline=timeline,
        schedule=ddp.LRSchedule(lambda optimizer: MultiStepLR(optimizer, [2, 3], gamma=0.1), steps=epochs),
        eval_step=right,
        eval_dataset=toy.data(20),
        metric="accuracy",
    )
    handle = trainer.run()
    monitor = ddp.Monitor(epochs)
    handle.setup_monitor(monitor)
    address = monitor.serve()
    port = int(address.rpartition(":")[2].strip("/"))
    rates = []
    while (m := handle.next_metrics()) is not None:
        assert 0 <= (m.scalars["train_acc"] or 0.0) <= 1
        rates.append(m.lr)
        monitor.log(m.epoch, timedelta(seconds=m.seconds), m)
    assert handle.join().params
    timeline.stop()
    assert rates == pytest.approx([0.2, 0.2, 0.02, 0.002])
    seen = messages(port)
    row = next(message.body for message in seen if message.kind == "row" and message.body["body"]["status"] == "ok")
    seen.close()
    assert row["body"] | {"epoch": epochs, "epochs": epochs, "mode": "nccl_cadence"} == row["body"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 403
    connection.close()
    root = monitor._root
    assert root is not None
    monitor.finish()
    assert not root.exists()
    live = pieces(monitor.save_html(tmp_path / "page.html"))["live"]
    assert [epoch["epoch"] for epoch in live["epochs"]] == list(range(epochs))
    assert {"0", "1", "all"} == set(live["curves"]["ranks"])
    check_timeline(
        timeline, tmp_path / "runs" / "touch", {"forward", "backward", "optimizer", "exchange"}, ranks={0, 1}
    )


@pytest.mark.usefixtures("in_turn")
def test_a_monitor_that_comes_late_and_a_shared_timeline_miss_nothing(make: Make, tmp_path: Path) -> None:
    records: list[Any] = []
    with ddp.Timeline() as timeline:
        for policy in ("async", "sync"):
            make(policy=policy, timeline=timeline).run().join()
    timeline(ddp_event(), 0.0)  # after stop: not recorded
    assert timeline.runs == 2
    for run in (0, 1):
        assert timeline.save_csv(tmp_path / f"{run}.csv", run=run).read_text().count("\n") > 50
    began = time.monotonic()
    run = make(timeline=lambda record, at: records.append(record), name=None).run()
    state = run.join()
    took = round(time.monotonic() - began, 3) + 0.001
    time.sleep(0.2)
    monitor = ddp.Monitor(2)
    run.setup_monitor(monitor)
    kept = pieces(monitor.save_html(tmp_path / "page.html"))
    assert kept["row"]["status"] == "ok"
    times = kept["about"]["result"]["time_s"]
    assert times["startup"] >= 0, "it began before the monitor came"
    assert 0 < times["train"] <= times["total"] <= took, "and ended before it"
    assert [epoch["epoch"] for epoch in kept["live"]["epochs"]] == [0, 1]
    assert kept["about"]["graph"]["nodes"][0]["type"] == "Linear"
    config = dict(kept["about"]["config"])
    assert re.fullmatch("[0-9a-f]{64}", config["structural_hash"])
    assert config["policy.name"] == "cadence"
    assert "Progress" in {type(record).__name__ for record in records}
    assert state.params


@pytest.mark.usefixtures("in_turn")
def test_a_step_of_several_micro_batches_is_one_step(make: Make, tmp_path: Path) -> None:
    with ddp.Timeline() as timeline:
        run = make(policy="sync", world_size=1, accumulate=2, batch_size=4, timeline=timeline).run()
        monitor = ddp.Monitor(2)
        run.setup_monitor(monitor)
        run.join()
    monitor.finish()
    events = json.loads(timeline.save_json(tmp_path / "timeline.json").read_text())["traceEvents"]
    counts = Counter(event["name"] for event in events if event["ph"] == "X")
    assert 0 < counts["step"] == counts["optimizer"] < counts["forward"]
    page = pieces(monitor.save_html(tmp_path / "page.html"))
    config = dict(page["about"]["config"])
    assert (config["train.batch_size"], config["train.accumulate"]) == ("4", "2")
    assert page["row"]["status"] == "ok"


def ddp_event() -> Any:
    from ddp.core.messages.events import Alive

    return Alive(0.0, 0)


@pytest.mark.parametrize("size", [1, 2])
def test_a_picture_of_the_model_changes_nothing(size: int, make: Make, request: pytest.FixtureRequest) -> None:
    if size > 1:
        request.getfixturevalue("in_turn")
    plain = make(world_size=size, epochs=3, policy="sync").run().join()
    run = make(world_size=size, epochs=3, policy="sync").run()
    picture = run.architecture_svg()
    drawn = run.join()
    assert all(torch.equal(plain.params[name], drawn.params[name]) for name in plain.params)
    svg = ElementTree.fromstring(picture)
    assert svg.tag.endswith("svg")
    assert len(svg.findall("{http://www.w3.org/2000/svg}g")) == 4
    assert run.architecture_svg() == picture


def test_no_model_is_made_beside_a_run_in_place_that_begins(tmp_path: Path) -> None:
    """It would draw from the generators with which the run makes its own."""
    made: list[threading.Thread] = []
    observers = RunObservers(
        RunSubject("m", "solo", ("cpu",)), lambda: made.append(threading.current_thread()), None, in_place=True
    )
    viewer = threading.Thread(target=observers.svg, daemon=True)
    viewer.start()
    while not (made or observers._waiting):
        time.sleep(0.001)
    with observers.during(tmp_path, lambda: None):
        assert made == [threading.current_thread()]
    viewer.join(10)
    assert not viewer.is_alive()


def test_a_model_that_cannot_be_followed_has_no_picture(make: Make) -> None:
    def none(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) == 1:
            raise RuntimeError("not one sample")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with make(world_size=1, train_step=none).run() as run:
        assert run.architecture_svg() == ""
        run.join()


def test_a_run_may_tell_of_itself_while_its_page_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the thread of a `Trainer` does: its model is known and it is over before the server answers."""
    monitor = ddp.Monitor(1)
    model = nn.Linear(2, 2)
    monitor.watch(model)
    maker = page_maker()

    class Slow:
        """Starts a page, while the run goes on."""

        def __getattr__(self, name: str) -> Any:
            return getattr(maker, name)

        def serve(self, root: Path, port: int) -> Any:
            model(torch.zeros(1, 2))
            monitor.log(0, 0.5, loss=1.0)
            monitor.watch(nn.Linear(2, 2))  # the first is over
            return maker.serve(root, port)

    monkeypatch.setattr("ddp.monitor.monitor.page_maker", lambda: Slow())
    with monitor:
        monitor.serve()
        assert monitor._root is not None
        ended, goes_on = sorted(monitor._root.glob("*/*/*"), key=lambda place: place.name.startswith(".tmp"))
        assert (ended / "graph.json").is_file()
        assert goes_on.name.startswith(".tmp")


def test_mistakes_are_one_line(tmp_path: Path, make: Make) -> None:
    monitor = ddp.Monitor(2)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="choose another port") as error:
        monitor.serve(taken.getsockname()[1])
    assert "\n" not in str(error.value)
    assert monitor.address is None
    with pytest.raises(ValueError, match=r"log: loss is 'low'; give one number"):
        monitor.log(0, 0.1, {"loss": "low"})
    with pytest.raises(ValueError, match="log: loss is 1000"):
        monitor.log(0, 0.1, {"loss": 10**400})
    with pytest.raises(ValueError, match="seconds=nan must be a finite number"):
        monitor.log(0, float("nan"))
    with pytest.raises(ValueError, match="log takes a mapping"):
        monitor.log(0, 0.1, 3)
    with pytest.raises(ValueError, match="recorded nothing yet"):
        ddp.Timeline().save_html(tmp_path / "x.html")
    with pytest.raises(ValueError, match="choose one of data, forward"), ddp.Timeline().measure("thinking"):
        pass
    with pytest.raises(ValueError, match="timeline must be a function"):
        make(timeline=3)
    with pytest.raises(ValueError, match="epochs=0"):
        ddp.Monitor(0)
    monitor.finish()


CODE = """
import time, ddp
from pathlib import Path
monitor = ddp.Monitor(2)
monitor.log(0, 0.1, loss=1.0)
monitor.serve()
print(monitor._page._process.pid, monitor._root, flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_a_script_that_is_killed(warm: Warm, tmp_path: Path) -> None:
    import psutil

    (tmp_path / "script.py").write_text(CODE)
    script = warm.start(tmp_path, "script.py")
    wait_for(lambda: script.printed().endswith("\n"), script)
    pid, _, root = script.printed().strip().partition(" ")
    assert Path(root).is_dir()
    os.kill(script.pid, signal.SIGKILL)
    assert script.result()[0] == -signal.SIGKILL
    until(lambda: not psutil.pid_exists(int(pid)))
    assert not Path(root).exists()
