"""Scalars that a training step records: their means, in all modes, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from ddp import record_scalar
from ddp.backends import paired_backends
from ddp.core.errors import RankFailed
from ddp.core.figures.summary import EpochFold
from ddp.core.messages.events import Progress
from ddp.core.policies import POLICIES
from ddp.replica.scalars import LONGEST, MOST_NAMES, Scalars, record_sum
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.training import controlled
from tests.slow import few

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_scalars_of_unequal_ranks_weigh_by_call(play: Play, policy: str, backend: str, world_size: int) -> None:
    speeds = (1.0, 0.3)[:world_size]
    played = play(policy, backend, controlled.recording, speeds=speeds, world_size=world_size, batch_size=8)
    for epoch in range(2):
        trained = [event for event in played.of(Progress) if event.epoch == epoch]
        fold = EpochFold()
        for event in trained:
            fold.add(event)
        (figures,) = fold.current()
        means, ranks = figures.scalars, figures.rank_scalars
        steps = [sum(e.steps for e in trained if e.rank == rank) for rank in range(world_size)]
        samples = [sum(e.samples for e in trained if e.rank == rank) for rank in range(world_size)]
        assert means["size"] == pytest.approx(toy.SAMPLES / sum(steps))
        assert means["half"] == pytest.approx(toy.SAMPLES / sum(steps) / 2)
        assert means["tail"] == 1.0
        assert means["odd"] is None
        for rank in range(world_size):
            if steps[rank]:
                assert ranks[rank]["size"] == pytest.approx(samples[rank] / steps[rank])


@pytest.mark.parametrize("world_size", [1, 2])
def test_recording_in_an_evaluation_is_an_error_that_says_so(play: Play, world_size: int) -> None:
    with pytest.raises(RankFailed, match="record_scalar was called outside of a train step"):
        play("cadence", "cpu", controlled.recording_too_late, world_size=world_size)


def test_recording_outside_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="outside of a train step"):
        record_scalar("loss", 1.0)
    with Scalars() as scalars:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                record_scalar("loss", 1.0)
            except RuntimeError as error:
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        record_scalar("loss", 1.0)
    assert len(caught) == 1
    assert scalars.drain() == (("loss", 1.0, 1),)


@pytest.mark.parametrize("name", ["", "x" * (LONGEST + 1), "a\nb", "\udc80", 7, None, b"loss", ["loss"]], ids=repr)
def test_a_hostile_name_is_refused(name: Any) -> None:
    with Scalars() as scalars, pytest.raises(ValueError, match="a name is printable text of 1 to 100 characters"):
        record_scalar(name, 1.0)
    assert scalars.drain() == ()


@pytest.mark.parametrize("value", ["3", None, b"3", [1.0], 1j, 10**400, torch.ones(2), torch.tensor(1j)], ids=repr)
def test_a_value_that_is_no_number_is_refused(value: Any) -> None:
    with Scalars(), pytest.raises(ValueError, match=r"'loss' is .*give one real number"):
        record_scalar("loss", value)


def test_names_are_bounded_over_the_whole_run() -> None:
    with Scalars() as scalars:
        for index in range(MOST_NAMES):
            record_scalar(f"name {index}", index)
            scalars.drain()
        record_scalar("name 0", 1.0)
        with pytest.raises(ValueError, match="one name more than the 64"):
            record_scalar("another", 1.0)


def test_tensors_are_taken_as_they_are_now() -> None:
    """Also many of them, of any kind, and none that changes afterwards."""
    with Scalars() as scalars:
        value = torch.zeros((), dtype=torch.float64)
        for _ in range(3000):
            record_scalar("count", value)
            value += 1
        record_scalar("whole", torch.tensor([[4]]))
        record_scalar("whole", True)
        record_scalar("grad", torch.ones((), requires_grad=True) * 2)
        record_scalar("half", torch.tensor(0.5, dtype=torch.bfloat16))
        record_scalar("huge", 1e308)
        record_scalar("huge", 1e308)
    expected = (
        ("count", 3000 * 2999 / 2, 3000),
        ("grad", 2.0, 1),
        ("half", 0.5, 1),
        ("huge", None, 2),
        ("whole", 5.0, 2),
    )
    assert scalars.drain() == expected
    assert scalars.drain() == ()


def test_a_step_of_several_passes_is_undone_as_a_whole() -> None:
    """Its exchange may break behind the last of them."""
    scalars = Scalars()
    for undone in (False, True, False):
        scalars.begin()
        for _ in range(2):
            with scalars:
                record_scalar("calls", 1.0)
                record_sum("right", 8, lambda values: values.sum(), torch.ones(8))
        if undone:
            scalars.undo()
    assert scalars.drain() == (("calls", 4.0, 4), ("right", 32.0, 32))
