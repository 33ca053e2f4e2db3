"""Flipped bits in replicas that must be alike: found within so many steps, and the rank is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.core.anomalies.majority import strangers
from ddp.core.errors import EngineError
from ddp.core.messages.commands import Drop, Publish
from ddp.core.messages.events import Failed, Finished, Progress, Ready, Saved
from ddp.core.messages.join_events import Joined
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import BITS, Fault, parse
from ddp.gradients.comparison import digest
from ddp.gradients.repetition import RepeatableSteps
from ddp.process.codec import decode
from ddp.replica.optim.optimizers import Several
from tests.runtime.conftest import Play
from tests.runtime.losses.test_mishap import trained_once
from tests.slow import every, slow
from tests.spread import WHOLE

EVERY, STEPS = 4, 18
"""Steps of a rank in the run of the tests."""


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("seed", every(2, range(50 if WHOLE else 20)))
def test_a_flipped_bit_is_found_within_so_many_steps_and_its_rank_is_named(play: Play, seed: int) -> None:
    dice = random.Random(seed)
    rank, step, bit = dice.randrange(3), dice.randrange(STEPS - EVERY), dice.randrange(BITS)
    fault = Fault(rank, step, "flip", float(bit))
    played = play("sync", "nccl", world_size=3, compare=EVERY, faults=(fault,), seed=seed)
    (failed,) = played.of(Failed)
    assert (failed.rank, failed.traceback) == (rank, failed.error)
    assert "a bit has flipped in the last 4 steps" in failed.error
    assert [drop.rank for drop in played.of(Drop)] == [rank]
    assert trained_once(played)
    assert len(played.digests) == 1


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("seed", every(2, range(50 if WHOLE else 20)))
def test_of_two_ranks_the_same_steps_done_again_name_the_one(play: Play, seed: int) -> None:
    """Any bit, in either rank; the other goes on, with every sample trained once."""
    dice = random.Random(seed)
    rank, step, bit = dice.randrange(2), dice.randrange(STEPS - EVERY), dice.randrange(BITS)
    fault = Fault(rank, step, "flip", float(bit))
    played = play("sync", "nccl", world_size=2, batch_size=12, compare=EVERY, faults=(fault,), seed=seed)
    (failed,) = played.of(Failed)
    assert failed.rank == rank
    assert "the same steps done again give others: a bit has flipped in the last 4 steps" in failed.error
    assert [drop.rank for drop in played.of(Drop)] == [rank]
    assert trained_once(played)


@pytest.mark.parametrize("rank", [0, *slow(1)])
def test_the_one_of_two_processes_comes_back_with_the_state_of_the_other(play: Play, rank: int) -> None:
    more = {"restarts": None, "epochs": 15, "speeds": (0.05, 0.05)}
    played = play("sync", "nccl", compare=2, faults=(Fault(rank, 5, "flip", 21.0),), **more)
    assert [failed.rank for failed in played.of(Failed)] == [rank]
    assert [joined.rank for joined in played.of(Joined)] == [rank]
    assert trained_once(played)
    assert len(played.digests) == 1


@pytest.mark.usefixtures("in_process")
def test_two_ranks_that_both_changed_end_the_run_and_say_what_to_do(play: Play) -> None:
    with pytest.raises(EngineError, match=r"no majority says whose are right.*resume=.*begin anew, on three ranks"):
        play("sync", "nccl", compare=EVERY, faults=(parse("0@5:flip*3"), parse("1@6:flip")))


@pytest.mark.usefixtures("in_process")
def test_three_ranks_without_a_majority_are_not_told_to_be_three(play: Play) -> None:
    with pytest.raises(EngineError, match=r"of ranks 0, 1, 2 differ.*if there is one \(resume=\), or begin anew$"):
        play("sync", "nccl", world_size=3, compare=EVERY, faults=(parse("0@5:flip*3"), parse("1@6:flip")))


def two(parameters: Iterable[Tensor], lr: float) -> Several:
    first, *others = parameters
    return Several([torch.optim.SGD([first], lr=lr), torch.optim.AdamW(others, lr=lr)])


@pytest.mark.parametrize("make", [torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW, two])
def test_a_repetition_leaves_all_as_it_is_and_sees_a_changed_bit(make: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    optimizer = make(model.parameters(), lr=0.001)
    steps = RepeatableSteps(list(model.parameters()), optimizer)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(4, 5)).square().sum().backward()
            optimizer.step()

    train(3)
    steps.mark()
    train(4)
    bits = digest(list(model.parameters()))
    state = deepcopy(optimizer.state_dict())
    assert steps.sound()
    assert digest(list(model.parameters())) == bits
    torch.testing.assert_close(optimizer.state_dict(), state, rtol=0, atol=0)
    train(1)
    assert steps.sound()
    with torch.no_grad():
        model.weight.view(torch.int32)[1, 2] ^= 1
    assert not steps.sound()
    train(2)
    assert not steps.sound()


@pytest.mark.usefixtures("in_process")
def test_comparing_two_ranks_changes_no_bit(play: Play) -> None:
    plain, compared = (play("sync", "nccl", compare=every) for every in (0, 2))
    assert plain.digests == compared.digests
    assert compared.of(Failed) == []


@pytest.mark.usefixtures("in_process")
def test_comparing_changes_no_bit(play: Play) -> None:
    plain, compared = (play("sync", "nccl", world_size=3, compare=every) for every in (0, 1))
    assert plain.digests == compared.digests
    assert compared.of(Failed) == []


@pytest.mark.usefixtures("in_process")
def test_waiting_for_others_to_compare_is_no_work(play: Play) -> None:
    """It was booked as exchange and as work; an emulated slow rank slept in proportion to it."""
    played = play("sync", "nccl", compare=1, step_s=0.004, faults=(parse("1@2:input*6"),))
    busy = sum(event.busy_s for event in played.of(Progress) if event.rank == 0)
    lines = (played.job.scratch / "slices-0.jsonl").read_bytes().splitlines()
    met = sum(each.seconds for each in map(decode, lines) if getattr(each, "kind", "") == "exchange")
    begin, end = (next(event.at for event in played.of(kind) if event.rank == 0) for kind in (Ready, Finished))
    assert met > 0
    assert busy + met <= end - begin


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("rank", [0, 1])
def test_no_checkpoint_is_made_of_replicas_that_differ(play: Play, rank: int, tmp_path: Path) -> None:
    """Rank 0's was kept: all ranks that went on from it had the flipped bit."""
    places: dict[str, Any] = {"checkpoints": Checkpointing(1, "epochs", 0.0), "checkpoint_folder": tmp_path}
    more = {"restarts": None, "world_size": 3, "epochs": 6, "faults": (Fault(rank, 8, "flip", 1.0),)}
    played = play("sync", "nccl", compare=6, **places, **more)
    assert {event.index for event in played.of(Saved)} >= {0, 1}
    assert played.of(Publish)[0].index == 1, "it is back"
    assert [failed.rank for failed in played.of(Failed)] == [rank]
    assert len(played.digests) == 1


@pytest.mark.usefixtures("in_process")
def test_a_flip_is_not_seen_where_nobody_compares(play: Play) -> None:
    played = play("sync", "nccl", world_size=3, faults=(parse("1@5:flip*20"),))
    assert len(played.digests) == 2


@pytest.mark.parametrize(
    ("digests", "found"),
    [
        ([7, 7, 7], ()),
        ([7, 7, 8], (2,)),
        ([8, 7, 7, 9], (0, 1, 2, 3)),
        ([7, 7, 7, 8, 9], (3, 4)),
        ([1, 2], (0, 1)),
        ([5], ()),
    ],
)
def test_strangers_are_those_that_most_disagree_with(digests: list[int], found: tuple[int, ...]) -> None:
    assert strangers(digests) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_digest_sees_every_bit(dtype: torch.dtype) -> None:
    values = torch.randn(3, 5).to(dtype)
    width = 8 * values.element_size()
    bits = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    before = digest([values, torch.zeros(2)])
    for bit in range(width):
        other = values.clone()
        other.view(bits)[1, 2] ^= (1 << bit) - (1 << width if bit == width - 1 else 0)
        assert digest([other, torch.zeros(2)]) != before


def test_a_bit_is_one_of_a_parameter() -> None:
    assert str(parse("1@5:flip*31")) == "1@5:flip*31"
    with pytest.raises(ValueError, match="bits are 0 to 31"):
        parse("1@5:flip*32")
