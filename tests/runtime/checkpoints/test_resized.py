"""A run that goes on with another number of ranks: the same order of samples, and the bits of a run of that number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ddp.checkpoint.checkpoint import find
from ddp.core.messages.events import Finished, Progress
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import parse
from ddp.sharding.recut import recut
from ddp.sharding.shards import grouped
from tests.runtime import toy
from tests.runtime.conftest import Play, Played
from tests.runtime.losses.test_mishap import trained_once
from tests.slow import slow

GLOBAL = 24
pytestmark = pytest.mark.usefixtures("in_process")


def begun(play: Play, folder: Path, backend: str, ranks: int) -> Path:
    """A checkpoint after one of two epochs."""
    every = {"checkpoints": Checkpointing(1, "epochs", 0.0), "checkpoint_folder": folder}
    play("sync", backend, world_size=ranks, batch_size=GLOBAL // ranks, **every)
    checkpoint, _ = find(folder)
    assert checkpoint is not None
    return checkpoint.path


def gone_on(play: Play, backend: str, ranks: int, place: Path, policy: str = "sync") -> Played:
    played = play(policy, backend, world_size=ranks, batch_size=GLOBAL // ranks, resume=place)
    assert sorted(event.rank for event in played.of(Finished)) == list(range(ranks))
    assert len(played.digests) == 1
    return played


@pytest.mark.parametrize("ranks", [2, *slow(4)])
def test_a_synchronous_run_goes_on_with_the_bits_of_that_number_of_ranks(
    play: Play, tmp_path: Path, ranks: int
) -> None:
    """Whatever shares the state: the optimizer whole on every rank, or in shards of three ranks that are cut anew."""
    digests = set()
    for backend in ("nccl", "zero1", "zero2", "zero3"):
        place = begun(play, tmp_path / backend, backend, 3)
        played = gone_on(play, backend, ranks, place)
        assert sum(event.samples for event in played.of(Progress)) == toy.SAMPLES
        digests |= played.digests
    assert len(digests) == 1


def test_it_is_as_if_a_rank_had_gone_there(play: Play, tmp_path: Path) -> None:
    """Three ranks of which one is lost at the beginning of the second epoch, and two that go on from there."""
    place = begun(play, tmp_path, "nccl", 3)
    step = -(-toy.SAMPLES // GLOBAL)
    lost = play("sync", "nccl", world_size=3, batch_size=GLOBAL // 3, faults=(parse(f"2@{step}:raise"),))
    assert trained_once(lost)
    assert gone_on(play, "nccl", 2, place).digests == lost.digests


@pytest.mark.parametrize(("policy", "backend"), [("cadence", "nccl"), ("async", "cpu"), ("sync", "cpu")])
def test_others_go_on_by_their_policy(play: Play, tmp_path: Path, policy: str, backend: str) -> None:
    options = toy.short_windows(policy)
    every = {"checkpoints": Checkpointing(1, "epochs", 0.0), "checkpoint_folder": tmp_path}
    play(policy, backend, world_size=2, options=options, epochs=3, **every)
    checkpoint, _ = find(tmp_path)
    assert checkpoint is not None
    more = {"resume": checkpoint.path}
    played = play(policy, backend, world_size=3, options=options, epochs=3, **more)
    rest = 3 * toy.SAMPLES - checkpoint.coordinator.samples
    assert sum(event.samples for event in played.of(Progress)) == rest
    assert len(played.digests) == 1


@pytest.mark.parametrize("own", [None, (1.0, 1.0, 2.0)])
def test_slices_of_their_own_are_taken_up_or_given_up_within_an_epoch(
    play: Play, tmp_path: Path, own: tuple[float, ...] | None
) -> None:
    """Where they were taken up, the rest of the epoch had no slice for anyone, and the run ended with a traceback."""
    options, every = toy.short_windows("cadence"), {"checkpoints": Checkpointing(2, "averages", 0.0)}
    before = {"partition_ratios": None if own else (0.5, 1.5)}
    play("cadence", "nccl", epochs=1, options=options | before, checkpoint_folder=tmp_path, **every)
    checkpoint, _ = find(tmp_path)
    assert checkpoint is not None
    assert checkpoint.coordinator.ledgers
    now = {"world_size": 3, "options": options | {"partition_ratios": own}}
    played = play("cadence", "nccl", epochs=1, resume=checkpoint.path, **now)
    rest = toy.SAMPLES - checkpoint.coordinator.samples
    assert sum(event.samples for event in played.of(Progress)) == rest


def test_another_batch_of_as_many_ranks_is_refused(play: Play, tmp_path: Path) -> None:
    place = begun(play, tmp_path, "nccl", 3)
    with pytest.raises(ValueError, match="of a run with batch_size=8, this one has 12"):
        play("sync", "nccl", world_size=3, batch_size=12, resume=place)


def cut_state(model: nn.Module, size: int, rank: int, whole: dict[nn.Parameter, Tensor]) -> tuple[Any, dict[str, Any]]:
    """One of so many ranks, and the state of its optimizer: of each parameter a stretch of `whole`."""
    groups = grouped(model, size, rank)
    for group in groups:
        if group.trained:
            group.place(lambda parameter, start, stop, at: parameter.data.view(-1)[start:stop].clone())
    shards = {shard.parameter: shard for group in groups for shard in group.shards}
    members = [list(model[0].parameters()), [*model[1].parameters(), *model[2].parameters()]]
    state: dict[int, dict[str, Any]] = {}
    held = [[shards[p] for p in group if p in shards] for group in members]
    for number, shard in enumerate(shard for group in held for shard in group):
        state[number] = {"step": torch.tensor(7.0), "exp_avg": whole[shard.parameter][shard.start : shard.stop]}
    ends = [len(held[0]), len(held[0]) + len(held[1])]
    own = [{"lr": 0.1, "params": list(range(ends[0]))}, {"lr": 0.2, "params": list(range(*ends))}]
    sharded = SimpleNamespace(before=members, groups=groups, shards=list(shards.values()))
    return sharded, {"state": state, "param_groups": own}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1 << 20))
def test_shards_cut_anew_are_those_of_the_whole(before: int, now: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 31), nn.Linear(31, 5), nn.Linear(5, 67, bias=False))
    model[1].bias.requires_grad_(False)
    whole = {p: torch.randn(p.numel()) for p in model.parameters() if p.requires_grad}
    states = [cut_state(model, before, rank, whole)[1] for rank in range(before)]
    for rank in range(now):
        sharded, wanted = cut_state(model, now, rank, whole)
        cut = recut(sharded, states)
        assert cut["param_groups"] == wanted["param_groups"]
        assert cut["state"].keys() == wanted["state"].keys()
        for index, state in wanted["state"].items():
            assert torch.equal(cut["state"][index]["exp_avg"], state["exp_avg"])
            assert cut["state"][index]["step"] == state["step"]
