"""`Trainer` and its handle, with one rank in place and with ranks that are processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import ddp
from ddp import Aborted, Diverged, EpochMetrics, RankFailed, RunHandle, WorkerHandle, record_scalar
from ddp.core.policies import POLICIES
from ddp.data import TensorSource
from ddp.runtime.backends import BACKENDS
from tests.api.conftest import Make, right
from tests.runtime import toy
from tests.runtime.conftest import Play

CELLS = [(policy, backend) for policy in POLICIES for backend in BACKENDS]
WORLDS = [1, 2]
WITHIN_S = 10.0
"""Bound on what must take seconds; a loaded machine is slow."""


def all_metrics(handle: RunHandle) -> list[EpochMetrics]:
    return list(iter(handle.next_metrics, None))


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("policy", "backend"), CELLS)
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
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    make(world_size=world_size, backend="cpu").run().join()
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.inputs, self.targets = toy.data()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class Records(Pairs):
    def __getitem__(self, index: int) -> Any:
        return {"x": self.inputs[index], "y": int(self.targets[index]), "name": f"sample {index}"}


class Fetching(Pairs):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [super(Fetching, self).__getitem__(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("there is __getitems__")


class Scaled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return 2 * inputs, target


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(
    "dataset",
    [list(toy.data()), TensorDataset(*toy.data()), Pairs(), Fetching(), TensorSource(*toy.data())],
    ids=["list", "TensorDataset", "map-style", "getitems", "source"],
)
def test_the_same_data_in_any_form_gives_the_same_bits(make: Make, dataset: Any, world_size: int) -> None:
    expected = make(world_size=world_size, policy="sync").run().join()
    state = make(world_size=world_size, policy="sync", dataset=dataset).run().join()
    assert equal(state.state_dict(), expected.state_dict())


@pytest.mark.parametrize("world_size", WORLDS)
def test_batches_may_be_dictionaries(make: Make, world_size: int) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        assert batch["name"][0].startswith("sample ")
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def measure(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        logits = model(batch["x"])
        return nn.functional.cross_entropy(logits, batch["y"]), (logits.argmax(1) == batch["y"]).double().mean()

    handle = make(
        world_size=world_size, dataset=Records(), train_step=step, eval_step=measure, eval_dataset=Records(),
        eval_batch_size=30, policy="sync",
    ).run()  # fmt: skip
    metrics, model = all_metrics(handle), toy.net(norm=True)
    model.load_state_dict(handle.join().state_dict())
    inputs, targets = toy.data()
    logits = model.eval()(inputs).detach()
    assert metrics[-1].eval_loss == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), abs=1e-5)
    assert metrics[-1].eval == pytest.approx(float((logits.argmax(1) == targets).double().mean()))


def test_a_subclass_of_a_tensor_data_set_keeps_its_own_ways(make: Make) -> None:
    plain = make(world_size=1).run().join()
    assert not equal(make(world_size=1, dataset=Scaled(*toy.data())).run().join().state_dict(), plain.state_dict())


def test_a_slice_of_tensors_goes_alone(make: Make) -> None:
    inputs, targets = toy.data()
    parts = (inputs[:52], targets[:52])
    handle = make(dataset=parts, policy="sync").run()
    assert [row.samples for row in all_metrics(handle)] == [52, 52]
    handle.join()


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


def fail_at(count: int, error: Exception, model: nn.Module, batch: Any) -> Tensor:
    calls = getattr(model, "calls", 0) + 1
    model.calls = calls  # type: ignore[assignment]
    if calls == count:
        raise error
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_a_step_is_raised_by_join_with_its_traceback(make: Make, world_size: int, backend: str) -> None:
    handle = make(
        world_size=world_size, backend=backend, train_step=partial(fail_at, 5, LookupError("not there"))
    ).run()
    assert all_metrics(handle) == []
    for _ in range(2):
        with pytest.raises(RankFailed, match=r"rank [01] failed: LookupError: 'not there'|not there") as caught:
            handle.join()
    assert "in fail_at" in caught.value.traceback
    assert len(getattr(caught.value, "__notes__", [])) == (world_size > 1), (
        "an uncaught error shows the rank's own words"
    )


@pytest.mark.parametrize("world_size", WORLDS)
def test_divergence_is_an_error_of_its_own(make: Make, world_size: int) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) * float("inf")

    with pytest.raises(Diverged, match="not finite"):
        make(world_size=world_size, train_step=step).run().join()


@pytest.mark.parametrize("value", [1.0, None, torch.ones(3, requires_grad=True), torch.ones(())], ids=repr)
def test_a_step_that_returns_no_loss_is_told(make: Make, value: Any) -> None:
    with pytest.raises(RankFailed, match="train_step must return the batch's mean loss"):
        make(world_size=1, train_step=lambda model, batch: value).run().join()


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("policy", "backend"), [("cadence", "nccl"), ("sync", "nccl"), ("async", "cpu")])
def test_abort_ends_everything_within_seconds(make: Make, policy: str, backend: str, world_size: int) -> None:
    handle = make(policy=policy, backend=backend, world_size=world_size, epochs=1_000_000).run()
    first = handle.next_metrics()
    assert first is not None
    assert first.epoch == 0
    began = time.monotonic()
    handle.abort()
    assert time.monotonic() - began < WITHIN_S
    rest = [first, *all_metrics(handle)]
    assert [row.epoch for row in rest] == list(range(len(rest)))
    with pytest.raises(Aborted, match="aborted before its end"):
        handle.join()


def test_abort_before_anything_has_started(make: Make) -> None:
    handle = make(epochs=1_000_000).run()
    handle.abort()
    with pytest.raises(Aborted):
        handle.join()


def test_abort_from_inside_a_run_in_place(make: Make) -> None:
    handles: list[RunHandle] = []
    begun = threading.Event()

    def callback(epoch: int, worker: WorkerHandle) -> None:
        begun.wait(WITHIN_S)
        if epoch == 2:
            handles[0].abort()

    handles.append(make(world_size=1, epochs=1_000_000, epoch_callback=callback).run())
    begun.set()
    assert len(all_metrics(handles[0])) == 2
    with pytest.raises(Aborted):
        handles[0].join()


def test_a_run_in_place_cannot_wait_for_itself(make: Make) -> None:
    handles: list[RunHandle] = []
    begun = threading.Event()

    def callback(epoch: int, worker: WorkerHandle) -> None:
        begun.wait(WITHIN_S)
        handles[0].join()

    handles.append(make(world_size=1, epoch_callback=callback).run())
    begun.set()
    with pytest.raises(RankFailed, match="cannot wait for that run"):
        handles[0].join()


@pytest.mark.parametrize("world_size", WORLDS)
def test_abort_after_the_end_changes_nothing(make: Make, world_size: int) -> None:
    with make(world_size=world_size).run() as handle:
        state = handle.join()
    handle.abort()
    assert equal(handle.join().state_dict(), state.state_dict())


@pytest.mark.parametrize("world_size", WORLDS)
def test_leaving_the_block_ends_the_run(make: Make, world_size: int) -> None:
    with make(world_size=world_size, epochs=1_000_000).run() as handle:
        assert handle.next_metrics() is not None
    with pytest.raises(Aborted):
        handle.join()
    with pytest.raises(ZeroDivisionError), make(world_size=world_size, epochs=1_000_000).run():
        raise ZeroDivisionError


def test_an_error_that_nobody_asked_for_is_raised_at_the_end_of_the_block(make: Make) -> None:
    broken = make(train_step=partial(fail_at, 2, OSError("disk"))).run
    with pytest.raises(RankFailed, match="disk"), broken() as handle:
        assert all_metrics(handle) == []
    with broken() as handle, pytest.raises(RankFailed, match="disk"):
        handle.join()


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


@pytest.mark.parametrize("waiting", ["next_metrics", "join"])
@pytest.mark.parametrize("world_size", WORLDS)
def test_an_interrupt_while_waiting_ends_everything(make: Make, world_size: int, waiting: str) -> None:
    reached = threading.Event()
    handle = make(world_size=world_size, epochs=1_000_000).run()
    first = handle.next_metrics()
    assert first is not None

    def press() -> None:
        reached.wait(WITHIN_S)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    reached.set()
    wait = handle.join if waiting == "join" else lambda: all_metrics(handle)
    with pytest.raises(KeyboardInterrupt):
        wait()
    with pytest.raises(Aborted):
        handle.join()


def test_importing_ddp_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import ddp, sys; assert 'torch' not in sys.modules; assert set(dir(ddp)) == set(ddp.__all__); ddp.Trainer"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'trainr'"):
        _ = ddp.trainr


def test_resident_data_without_an_evaluation(make: Make) -> None:
    with make(world_size=1, loader="resident", epochs=1).run() as run:
        assert run.next_metrics() is not None
        run.join()


@pytest.mark.parametrize("value", [None, "0.5", (1.0, 2.0, 3.0), torch.ones(2), (1.0, None), [0.5, 0.5]], ids=repr)
def test_an_evaluation_that_returns_no_mean_is_told(make: Make, value: Any) -> None:
    evaluated = {"eval_step": lambda model, batch: value, "eval_dataset": toy.data(20), "epochs": 1}
    with pytest.raises(RankFailed, match=r"eval_step must return the mean metric.*\(mean loss, mean metric\), not"):
        make(world_size=1, **evaluated).run().join()


def test_complex_parameters_are_refused_by_name(make: Make) -> None:
    def model() -> nn.Module:
        net = toy.net(norm=False)
        net.register_parameter("phase", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
        return net

    with pytest.raises(RankFailed, match="parameter phase is complex64: complex parameters cannot be trained here"):
        make(world_size=1, model_factory=model).run().join()


def test_batches_may_be_named_tuples(make: Make) -> None:
    """As PyTorch's own loader gives them."""

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return Row(torch.ones(6), index % 2)

    def step(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch.point), batch.label)

    make(world_size=1, dataset=Rows(), train_step=step, epochs=1).run().join()


class Row(NamedTuple):
    point: Tensor
    label: int
