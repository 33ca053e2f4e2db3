"""An error of the program ends the run, with the traceback of whoever raised it first; the loss of one rank does not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.backends import BACKENDS, paired_backends
from ddp.core.errors import RankFailed, RankLost
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Failed, Finished
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import Fault
from ddp.engine.elche import SeveralFailed
from ddp.process.error_origin import origin
from ddp.replica.handle import WorkerHandle
from ddp.replica.task import Task, Tensors
from tests.policies import accepted
from tests.runtime import toy
from tests.runtime.conftest import Play

pytestmark = pytest.mark.usefixtures("in_process")

CELLS = [(policy, backend) for policy in POLICIES for backend in paired_backends()]
NEEDING = ["zero1", "zero2", "zero3", "torch_ddp", "torch_fsdp", "torch_zero1", "torch_local_sgd"]
WHOLE: dict[str, Any] = {"anchor": 4, "max_anchor": 4}
"""Windows of four steps: the third is in the first one."""


def mark(model: Any) -> Any:
    """Where a rank notes what it is: a parameter, as an engine may wrap the model."""
    return next(iter(model.parameters()))


def known(epoch: int, worker: WorkerHandle) -> None:
    mark(worker.model).rank, mark(worker.model).calls = worker.rank, 0


def in_step_two(*ranks: int, alike: bool = True, kind: type[BaseException] = ValueError) -> Task:
    """`ranks` raise in their third step, in words of their own; `alike`: in the same line."""

    def loss(model: Any, batch: Tensors) -> Tensor:
        own = mark(model)
        own.calls += 1
        if own.calls == 3 and own.rank in ranks:
            if alike or own.rank == ranks[0]:
                raise kind(f"rank {own.rank} cannot read {len(batch[0])} samples")
            raise ValueError("another matter")
        return toy.loss(model, batch)

    return replace(toy.task(), loss=loss, epoch_callback=known)


def two() -> Task:
    return in_step_two(0, 1)


def everybody() -> Task:
    return in_step_two(0, 1, 2)


def one() -> Task:
    return in_step_two(1)


def apart() -> Task:
    return in_step_two(0, 1, alike=False)


def options(policy: str) -> dict[str, Any]:
    return accepted(policy, **WHOLE)


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_the_same_error_on_two_of_three_ranks_ends_the_run(play: Play, policy: str, backend: str) -> None:
    with pytest.raises(SeveralFailed, match=r"ValueError: rank [01] cannot read \d+ samples") as caught:
        play(policy, backend, two, world_size=3, options=options(policy), tolerate_loss=True)
    assert caught.value.traceback.count("Traceback") == 1
    assert "in loss" in caught.value.traceback
    assert f"rank {caught.value.rank} cannot" in str(caught.value)


@pytest.mark.parametrize("policy", ["sync", "cadence"])
@pytest.mark.parametrize("engine", ["ddp.engine.elche", "ddp.graph.engine", "ddp.virtual.engine"])
def test_to_leave_the_program_is_an_error_too(play: Play, policy: str, engine: str) -> None:
    """The rank counted as lost."""
    task = partial(in_step_two, 0, 1, 2, kind=SystemExit)
    fields = {"engine": importlib.import_module(engine), "options": options(policy), "tolerate_loss": True}
    with pytest.raises(RankFailed, match=r"SystemExit: rank [01] cannot read \d+ samples"):
        play(policy, "nccl", task, deadline_s=5.0, **fields)


@pytest.mark.parametrize("world_size", [1, 2])
def test_so_does_that_of_everybody(play: Play, world_size: int) -> None:
    with pytest.raises(RankFailed, match=r"ValueError: rank [01] cannot read 8 samples") as caught:
        play("cadence", "cpu", everybody, world_size=world_size, options=WHOLE, tolerate_loss=True)
    assert "in loss" in caught.value.traceback
    assert isinstance(caught.value, SeveralFailed) == (world_size > 1)


def test_the_last_rank_alone_is_not_several(play: Play) -> None:
    """All ranks would not begin again."""
    with pytest.raises(RankFailed) as caught:
        play("cadence", "cpu", apart, world_size=2, options=WHOLE, tolerate_loss=True)
    assert not isinstance(caught.value, SeveralFailed)


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_in_threads_too(play: Play, policy: str) -> None:
    graph = importlib.import_module("ddp.graph.engine")
    with pytest.raises(RankFailed, match="ValueError: rank 0 cannot") as caught:
        play(policy, "nccl", everybody, engine=graph, options=options(policy))
    assert "in loss" in caught.value.traceback


@pytest.mark.parametrize(("task", "lost"), [(one, {1}), (apart, {0, 1})])
@pytest.mark.parametrize(("policy", "backend"), [("sync", "nccl"), ("cadence", "nccl"), ("async", "cpu")])
def test_one_rank_alone_is_lost_and_two_with_different_errors_are(
    play: Play, policy: str, backend: str, task: Callable[[], Task], lost: set[int]
) -> None:
    played = play(policy, backend, task, world_size=3, options=options(policy), tolerate_loss=True)
    assert {order.rank for order in played.of(Drop)} == lost
    assert {event.rank for event in played.of(Finished)} == {0, 1, 2} - lost
    assert all(event.origin.startswith("ValueError in loss (") for event in played.of(Failed))


@pytest.mark.parametrize(("steps", "ends"), [((2, 3), True), ((2, 12), False)])
def test_a_script_may_say_so(play: Play, steps: tuple[int, int], ends: bool) -> None:
    """In one window of four steps, or with some averages between."""
    faults = tuple(Fault(rank, step, "raise") for rank, step in enumerate(steps))
    run = {"world_size": 3, "options": {**WHOLE, "partition_ratios": (1.0, 1.0, 1.0)}, "faults": faults, "epochs": 3}
    if ends:
        with pytest.raises(RankFailed, match="the fault script says so"):
            play("cadence", "nccl", **run)
    else:
        assert len(play("cadence", "nccl", **run).of(Drop)) == 2


def test_who_is_left_alone_and_killed_did_not_raise(play: Play) -> None:
    """The run ended as failed by the error of the rank that it had gone on without."""
    with pytest.raises(RankLost, match="rank 0: its process is gone"):
        play("cadence", "cpu", faults=(Fault(1, 2, "raise"), Fault(0, 8, "crash")), options=WHOLE)


@pytest.mark.parametrize("name", NEEDING)
def test_a_mode_that_needs_every_rank_says_so_and_which_do_not(play: Play, name: str) -> None:
    said = rf"rank 1: its process is gone \(killed by signal 9\); {name} cannot go on without a rank; .*nccl_sync"
    with pytest.raises(RankLost, match=said) as ended:
        play("sync", name, faults=(Fault(1, 2, "crash"),))
    assert ("cluster.restart starts all ranks again" in str(ended.value)) == BACKENDS[name].checkpoints


def of(work: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        work()
    return origin(caught.value)


def test_the_same_error_is_one_type_in_one_line_of_the_users() -> None:
    def torn(size: int) -> Any:
        return torch.nn.functional.linear(torch.zeros(size, 3), torch.zeros(2, 4))

    assert of(lambda: torn(5)) == of(lambda: torn(7)), "messages differ"
    assert " in torn (" in of(lambda: torn(5))

    def wrapped(size: int) -> Any:
        try:
            return torn(size)
        except RuntimeError as error:
            raise KeyError(size) from error

    assert of(lambda: wrapped(5)).startswith("KeyError in torn (")
    assert of(lambda: wrapped(5)) != of(lambda: torn(5))
    normalised = nn.BatchNorm1d(3)
    assert of(lambda: normalised(torch.zeros(1, 3))).startswith("ValueError in <lambda> (")


def test_without_a_line_of_the_users_the_innermost_counts() -> None:
    assert origin(ValueError("never raised")) == "ValueError"
    found = of(lambda: None.missing)  # type: ignore[attr-defined]
    assert "AttributeError in <lambda> (" in found
