"""Every row of the table for those who come from floDl (`docs/reference/flodl.md`) is called here, under our names."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore
from torch.optim.lr_scheduler import MultiStepLR

import ddp
from bench.base.console import VERBOSITY, verbosity
from bench.command.verbs.listing import presets
from bench.config.flags import read
from ddp.core.messages.events import RoundClosed
from ddp.core.window_sizes import controller
from ddp.core.window_sizes.allocation import fit
from ddp.core.window_sizes.controller import ElCheSettings
from ddp.engine.modes import modes
from ddp.parallel.group import make as make_group
from ddp.parallel.sampler import RoundRobinSampler
from tests.api.conftest import Make
from tests.graph.several import on
from tests.runtime import toy

ROWS: dict[str, Callable[..., None]] = {}
TABLE = Path(__file__).parents[2] / "docs" / "reference" / "flodl.md"
pytestmark = pytest.mark.usefixtures("in_process")


def row(begin: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register what calls the row that begins so."""

    def enter(act: Callable[..., None]) -> Callable[..., None]:
        ROWS[begin] = act
        return act

    return enter


def test_every_row_of_the_table_has_a_test() -> None:
    rows = [line[2:] for line in TABLE.read_text().splitlines() if line.startswith("- ")]
    missing = [line for line in rows if not any(line.startswith(begin) for begin in ROWS)]
    assert missing == []
    assert [begin for begin in ROWS if not any(line.startswith(begin) for line in rows)] == []


@pytest.fixture
def world(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return SimpleNamespace(make=make, folder=tmp_path, patch=monkeypatch)


class Batches:
    """A source: samples by index, a batch at once."""

    def __init__(self) -> None:
        self.columns = toy.data(40)

    def __len__(self) -> int:
        return len(self.columns[0])

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        return tuple(column[indices] for column in self.columns)

    def to(self, device: torch.device) -> Batches:
        return self


@row("`Ddp::builder")
def builder(world: SimpleNamespace) -> None:
    assert world.make(epochs=1, overhead_target=0.1, max_overshoot=3, policy="async").run().join().params


@row("`BatchDataSet`")
def source(world: SimpleNamespace) -> None:
    run = world.make(dataset=Batches(), epochs=1).run()
    run.join()
    assert run.next_metrics().samples == 40


@row("`num_epochs`")
def epochs(world: SimpleNamespace) -> None:
    def begins(epoch: int, worker: ddp.WorkerHandle) -> None:
        if epoch == 1:
            worker.set_scheduler(lambda seen: 0.5)

    run = world.make(epochs=2, epoch_callback=begins, schedule=lambda seen: 0.1).run()
    assert [m.lr for m in iter(run.next_metrics, None)] == pytest.approx([0.01, 0.05])
    run.join()


@row("`MultiStepLR::new")
def scheduler(world: SimpleNamespace) -> None:
    schedule = ddp.LRSchedule(lambda optimizer: MultiStepLR(optimizer, [1], 0.1), 2)
    run = world.make(epochs=2, schedule=schedule).run()
    assert [m.lr for m in iter(run.next_metrics, None)] == pytest.approx([0.1, 0.01])
    run.join()
    on(1).set_scheduler(schedule, samples=100)


@row("`ApplyPolicy`")
def policy(world: SimpleNamespace) -> None:
    for name, backend in (("sync", "cpu"), ("async", "nccl")):
        run = world.make(epochs=1, policy=name, backend=backend, dataset=toy.data(40)).run()
        run.join()
        assert run.summary().mode == f"{backend}_{name}"


@row("`progressive_dispatch")
def dispatch(world: SimpleNamespace) -> None:
    for name in ("progressive", "partition"):
        assert world.make(epochs=1, dispatch=name).run().join().params


@row("`max_anchor(Some(0))`")
def lockstep(world: SimpleNamespace) -> None:
    assert world.make(epochs=1, policy="sync").run().join().params


@row("`checkpoint_every(n)`")
def checkpoints(world: SimpleNamespace) -> None:
    kept: list[ddp.CheckpointInfo] = []
    settings = {"checkpoint_folder": world.folder / "kept", "policy": "sync"}
    world.make(**settings, epochs=2, checkpoint_every=1, checkpoint_callback=kept.append).run().join()
    assert kept[-1].epochs == 1  # the end of the run needs none
    assert world.make(**settings, epochs=2, resume=world.folder / "kept").run().join().params


@row("`snapshot_timeout_secs`")
def deadline(world: SimpleNamespace) -> None:
    assert world.make(epochs=1, backend="cpu", deadline_s=20.0).run().join().params


@row("`Timeline::new(100)`")
def seen(world: SimpleNamespace) -> None:
    timeline, monitor = ddp.Timeline(100), ddp.Monitor(1)
    run = world.make(epochs=1, timeline=timeline, world_size=1).run()
    run.setup_monitor(monitor)
    assert run.architecture_svg().startswith("<svg")
    run.join()
    timeline.stop()
    assert monitor.address is None  # `serve` is called in test_monitor
    monitor.finish()


@row("`EpochMetrics.avg_loss`")
def metrics(world: SimpleNamespace) -> None:
    run = world.make(epochs=1).run()
    first = run.next_metrics()
    assert first.loss > 0
    assert first.seconds > 0
    assert len(first.per_rank_scalars) == len(first.per_rank_throughput) == len(first.devices) == 2
    run.join()


@row("`worker.local_step()`")
def worker(world: SimpleNamespace) -> None:
    told: list[tuple[Any, ...]] = []

    def begins(epoch: int, worker: ddp.WorkerHandle) -> None:
        told.append((worker.step, worker.version, worker.epoch, worker.lr))

    world.make(epochs=1, world_size=1, epoch_callback=begins).run().join()
    assert told == [(0, 0, 0, 0.1)]


@row("`ElChe::new")
def el_che(world: SimpleNamespace) -> None:
    assert controller.start(ElCheSettings(anchor=7), 2, 100).counts == (7, 7)


@row("`with_speed_ratio`")
def hint(world: SimpleNamespace) -> None:
    counts = controller.start(ElCheSettings(anchor=4, speed_hint=(1.0, 0.4)), 2, 100).counts
    assert counts[0] == 10
    assert world.make(epochs=1, speed_hint=(1.0, 0.4)).run().join().params


@row("`report_timing`")
def timing(world: SimpleNamespace) -> None:
    settings = ElCheSettings(anchor=4)
    closed = RoundClosed(1.0, 0, (4, 4), (0.4, 0.8), 0.01, (0.0, 0.0), (0.0, 0.0), (False, False))
    state = controller.measure(settings, controller.start(settings, 2, 100), closed)
    assert state.speeds[0] != state.speeds[1]
    assert controller.nudge_down(state, 0.5).anchor == 2
    assert sum(fit((10, 5), (10.0, 5.0), 6)) <= 6


@row("`Ddp::setup`")
def graph(world: SimpleNamespace) -> None:
    built = on(2)
    assert built.world_size() == 2
    with pytest.raises(ddp.GraphError, match="set up already"):
        ddp.setup(built, lambda device: built, lambda parameters: torch.optim.SGD(parameters, lr=0.1))


@row("`DataLoader`'s")
def loader(world: SimpleNamespace) -> None:
    for more, batches in (({}, 3), ({"drop_last": True}, 2)):
        with ddp.DataLoader(toy.data(20), batch_size=8, loader="streaming", **more) as made:
            assert len(list(made.epoch(0))) == batches


@row("`NcclComms`")
def collectives(world: SimpleNamespace) -> None:
    group = make_group(0, 1, torch.device("cpu"), HashStore(), "memory", 20.0)
    one = torch.tensor([3.0])
    for op in ("sum", "prod", "max", "min", "avg"):
        group.all_reduce(one, op)
    group.broadcast(one, src=0)
    assert group.all_gather(one).tolist() == [[3.0]]
    group.close()


@row("`NcclAbortHandle`")
def stuck(world: SimpleNamespace) -> None:
    assert "timeout_s" in inspect.signature(ddp.init).parameters
    assert issubclass(ddp.RankLost, ddp.EngineError)


@row("`CudaEvent`")
def streams(world: SimpleNamespace) -> None:
    with torch.cuda.stream(None):
        assert issubclass(torch.cuda.Stream, torch.Stream)
        assert issubclass(torch.cuda.Event, torch.Event)


@row("`msg!`")
def printed(world: SimpleNamespace) -> None:
    logging.getLogger(__name__).debug("epoch 0")


@row("`fdl.yaml` jobs")
def jobs(world: SimpleNamespace) -> None:
    assert {"ci", "nightly"} <= presets().keys()


@row("`fdl -v`")
def loud(world: SimpleNamespace) -> None:
    assert [read([flag, "seed=1"])[0].verbosity for flag in ("-v", "-vv", "-vvv", "--quiet")] == [1, 2, 3, -1]
    world.patch.setenv(VERBOSITY, "3")
    assert verbosity() == 3


@row("`launch_ddp.py`")
def launch(world: SimpleNamespace) -> None:
    world.patch.setattr("ddp.parallel.group._current", None)
    group = ddp.init(0, 1, store=HashStore())
    assert (ddp.get_rank(), ddp.get_local_rank(), ddp.get_world_size()) == (0, 0, 1)
    group.close()


@row("`MinimalDDP`")
def wrapper(world: SimpleNamespace) -> None:
    group = make_group(0, 1, torch.device("cpu"), HashStore(), "memory", 20.0)
    wrapped = ddp.DistributedDataParallel(nn.Linear(2, 1), process_group=group, overlap=False)
    wrapped(torch.ones(4, 2)).sum().backward()
    wrapped.sync_gradients()
    group.close()


@row("`DistributedSampler`")
def sampler(world: SimpleNamespace) -> None:
    assert ddp.RoundRobinSampler is RoundRobinSampler
    both = [list(RoundRobinSampler(range(8), rank=rank, world_size=2, shuffle=False)) for rank in (0, 1)]
    assert both == [[0, 2, 4, 6], [1, 3, 5, 7]]


@row("`fsdp_round_trip_sketch`")
def sharded(world: SimpleNamespace) -> None:
    assert {"zero1", "zero2", "zero3"} <= modes().keys()
    assert world.make(epochs=1, mode="zero1").run().join().params


@pytest.mark.parametrize("begin", sorted(ROWS))
def test_a_row_is_what_it_says(begin: str, world: SimpleNamespace) -> None:
    ROWS[begin](world)
