"""`Trainer` and its handle, with one rank in place and with ranks that are processes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ddp
from ddp import EpochMetrics, WorkerHandle, record_scalar
from ddp.backends import paired_backends
from ddp.core.policies import POLICIES
from tests.api.conftest import Make, right
from tests.api.trained import WORLDS, all_metrics, equal
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import few

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_lambdas_and_closures_train_in_every_mode(make: Make, policy: str, backend: str, world_size: int) -> None:
    step = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731

    def recording(model: nn.Module, batch: Any) -> Tensor:
        record_scalar("size", len(batch[0]))
        return step(model, batch)  # type: ignore[no-any-return]

    speeds = (1.0, 0.4)[:world_size]
    trainer = make(
        policy=policy, backend=backend, world_size=world_size, speeds=speeds, train_step=recording, epochs=3,
        eval_step=lambda model, batch: right(model, batch), eval_dataset=toy.data(), eval_batch_size=60,
    )  # fmt: skip
    handle = trainer.run()
    assert (handle.world_size, handle.devices) == (world_size, ("cpu",) * world_size)
    metrics = all_metrics(handle)
    state = handle.join()
    assert [row.epoch for row in metrics] == [0, 1, 2]
    for row in metrics:
        assert row.samples == toy.SAMPLES
        assert row.loss is not None
        assert row.seconds > 0 or (policy != "sync" and row.epoch), "epochs overlap, and the later one may end first"
        assert sum(row.per_rank_batch_share) == pytest.approx(1.0)
        assert sum(row.per_rank_throughput) * row.seconds == pytest.approx(row.samples if row.seconds else 0)
        assert row.devices == handle.devices
        assert len(row.per_rank_scalars) == world_size
        assert 1 <= (row.scalars["size"] or 0) <= 8
        assert row.eval_loss is None
    model = toy.net(norm=True)
    model.load_state_dict(state.state_dict())
    assert list(state.params) == [name for name, _ in model.named_parameters()]
    assert list(state.buffers) == [name for name, _ in model.named_buffers()]
    assert metrics[-1].eval == pytest.approx(float(right(model.eval(), toy.data())), abs=1e-6)
    assert handle.next_metrics() is None
    assert handle.poll_metrics() == []
    assert equal(handle.join().state_dict(), state.state_dict())


def test_one_rank_in_place_is_the_solo_engine_bit_for_bit(make: Make, play: Play) -> None:
    alone = play("sync", "nccl", partial(toy.task, norm=True), world_size=1)
    handle = make(world_size=1, max_grad_norm=1e6).run()
    assert equal(handle.join().state_dict(), alone.state())
    assert not equal(make(world_size=1, seed=4).run().join().state_dict(), alone.state())


def test_two_ranks_are_those_of_the_engine_bit_for_bit(make: Make, play: Play) -> None:
    engine = play("sync", "nccl", partial(toy.task, norm=True))
    assert equal(make(policy="sync").run().join().state_dict(), engine.state())


def test_a_trainer_runs_again_from_the_beginning(make: Make) -> None:
    trainer = make(world_size=1)
    first = trainer.run().join()
    assert equal(first.state_dict(), trainer.run().join().state_dict())
    assert not next(iter(first.params.values())).requires_grad


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_callers_threads_and_random_numbers_are_as_before(make: Make, world_size: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = torch.get_rng_state()
        make(world_size=world_size, backend="cpu").run().join()
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        torch.set_num_threads(threads)  # bits of the tests that follow in this process depend on it


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_rate_follows_schedule_ratio_and_callback(make: Make, world_size: int) -> None:
    def callback(epoch: int, worker: WorkerHandle) -> None:
        if epoch == 1:
            worker.set_lr(0.7)

    handle = make(
        world_size=world_size, lr_scale_ratio=0.5, schedule=lambda fraction: 2.0, epoch_callback=callback, policy="sync"
    ).run()
    rates = [row.lr for row in all_metrics(handle)]
    handle.join()
    assert rates == [pytest.approx(0.2 * (1 + 0.5 * (world_size - 1))), 0.7]


def test_scaling_the_rate_with_the_ranks_is_the_default() -> None:
    step = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    optimizer = partial(torch.optim.SGD, lr=0.1)
    trainer = ddp.Trainer(partial(toy.net, True), optimizer, step, toy.data(), batch_size=8, epochs=1, world_size=3)
    assert trainer._job.lr_scale == 3.0


def test_poll_does_not_wait_and_leaves_nothing_out(make: Make) -> None:
    handle = make(epochs=5).run()
    seen: list[EpochMetrics] = []
    deadline = time.monotonic() + 60
    while len(seen) < 5 and time.monotonic() < deadline:
        seen += handle.poll_metrics()
        time.sleep(0.01)
    assert [row.epoch for row in seen] == list(range(len(seen)))
    handle.join()
    assert [row.epoch for row in [*seen, *handle.poll_metrics()]] == [0, 1, 2, 3, 4]


def test_importing_ddp_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import ddp, sys; assert 'torch' not in sys.modules; assert set(dir(ddp)) == set(ddp.__all__); ddp.Trainer"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'trainr'"):
        _ = ddp.trainr
