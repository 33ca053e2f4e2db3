"""How a run ends before its time: errors of code that is the user's, abort, interrupts, and the end of the block."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import Aborted, Diverged, RankFailed, RunHandle, Timeline, WorkerHandle
from ddp.backends import paired_backends
from ddp.monitor.track import RunTrack
from ddp.trainer.observers import RunObservers
from tests.api.conftest import Make
from tests.api.trained import WORLDS, all_metrics, equal
from tests.held_up import in_time
from tests.runtime import toy
from tests.slow import few

WITHIN_S = 10.0
"""Bound on what must take seconds; a loaded machine is slow."""


def fail_at(count: int, error: BaseException, model: nn.Module, batch: Any) -> Tensor:
    calls = getattr(model, "calls", 0) + 1
    model.calls = calls  # type: ignore[assignment]
    if calls == count:
        raise error
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("backend", paired_backends())
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


def test_an_interrupt_that_a_rank_raises_itself_is_its_error(make: Make) -> None:
    """It was printed, and the rank taken for lost."""
    with pytest.raises(RankFailed, match=r"rank [01] failed: KeyboardInterrupt: enough"):
        make(train_step=partial(fail_at, 5, KeyboardInterrupt("enough"))).run().join()


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
    assert in_time(began, WITHIN_S)
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


def test_a_second_run_in_place_is_refused_until_the_first_has_ended(make: Make) -> None:
    """They shared the random generators: neither ended with the bits of its seed, and nobody said so."""
    alone = make(world_size=1).run().join()
    begun, on = threading.Event(), threading.Event()

    def callback(epoch: int, worker: WorkerHandle) -> None:
        begun.set()
        on.wait(WITHIN_S)

    first = make(world_size=1, epoch_callback=callback).run()
    assert begun.wait(WITHIN_S)
    with pytest.raises(RuntimeError, match="a run without processes of its own is going on"):
        make(world_size=1).run()
    make(world_size=2).run().join()  # in processes of its own
    on.set()
    assert equal(first.join().state_dict(), alone.state_dict())
    assert equal(make(world_size=1).run().join().state_dict(), alone.state_dict())


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


@pytest.mark.parametrize(("world_size", "waiting"), few(WORLDS, ["next_metrics", "join"]))
def test_an_interrupt_while_waiting_ends_everything(
    make: Make, press: Callable[[], None], world_size: int, waiting: str
) -> None:
    reached = threading.Event()
    handle = make(world_size=world_size, epochs=1_000_000).run()
    first = handle.next_metrics()
    assert first is not None

    def soon() -> None:
        reached.wait(WITHIN_S)
        time.sleep(0.5)
        press()

    threading.Thread(target=soon).start()

    def wait() -> object:
        reached.set()
        return handle.join() if waiting == "join" else all_metrics(handle)

    with pytest.raises(KeyboardInterrupt):
        wait()
    with pytest.raises(Aborted):
        handle.join()


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


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_what_torch_does_not_add_up_is_refused_by_name(make: Make, kind: str) -> None:
    """It failed at the first average, in words of torch."""

    def model() -> nn.Module:
        net = toy.net(norm=False)
        scale = torch.ones(2).to(torch.float8_e4m3fn)
        if kind == "buffer":
            net.register_buffer("scale", scale)
        else:
            net.register_parameter("scale", nn.Parameter(scale, requires_grad=False))
        return net

    with pytest.raises(RankFailed, match="scale is float8_e4m3fn, which cannot be averaged: hold it as bfloat16"):
        make(world_size=1, model_factory=model).run().join()


def test_a_timeline_without_room_ends_its_own_record_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(track: RunTrack, lines: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunTrack, "_append", full)
    with Timeline(100) as timeline:
        handle = make(world_size=1, timeline=timeline).run()
        assert len(all_metrics(handle)) == 2
        handle.join()
    assert capsys.readouterr().err.count("records no more of this run: [Errno 28] No space left on device") == 1


def test_a_run_whose_observers_fail_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was waited for in vain."""

    def fail(observers: RunObservers) -> None:
        raise LookupError("no picture")

    monkeypatch.setattr(RunObservers, "over", fail)
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr("threading.excepthook", raised.append)
    handle = make(world_size=1).run()
    assert len(all_metrics(handle)) == 2
    handle.wait()
    assert [str(arguments.exc_value) for arguments in raised] == ["no picture"]
