"""Sharding: whole states go on at other world sizes, frozen parameters, checkpoints, memory."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.tensor_memory import TensorWatch, kinds, sizes
from ddp.core.messages.commands import Join
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.worker import Worker
from ddp.engine.rank import RankLoop
from ddp.sharding.partition import GRAIN, Layout
from ddp.sharding.states import full_state_dict, load_full_state_dict, merge, sharded_state_dict
from tests.runtime.conftest import Play
from tests.runtime.sharding.sharded_ranks import KINDS, MODELS, Team, batch, together
from tests.runtime.sharding.sharded_ranks import OPTIMIZERS as MAKERS
from tests.runtime.sharding.zero_tasks import play_zero, task
from tests.slow import slow


def measure(folder: Path, rank: int, world_size: int, kind: str):
    team = Team(folder, rank, world_size, kind, "memory", model="wide")
    team.step(0)
    team.step(1)  # gradients have found their order, and the optimizer has its state
    with team.watch() as watch:
        for number in range(2, 5):
            team.step(number)
    resting = sum(sizes(kinds(team.model, team.optimizer, team.sharded)).values())
    team.sharded.unwrap()
    team.collectives.close()
    return watch.peak, resting, watch.activations


@pytest.mark.parametrize("world_size", [*slow(1), 2, *slow(4)])
def test_a_rank_holds_its_share_and_one_layer(tmp_path: Path, world_size: int) -> None:
    """AdamW has two values for each parameter. A layer is its parameters and gradients."""
    model = MODELS["wide"]()
    size = 4 * sum(p.numel() for p in model.parameters())
    layer = 2 * 4 * (128 * 128 + 128)
    for peak, resting, activations in together(measure, tmp_path, world_size, "zero3"):
        assert sum(peak.values()) <= 1.1 * 4 * size / world_size + layer, peak
        assert resting <= 1.1 * 4 * size / world_size
        assert peak["optimizer"] == pytest.approx(2 * size / world_size, rel=0.02)
        assert activations > 0


@pytest.mark.parametrize(("kind", "whole"), [("zero1", 2), *slow(("zero2", 1))])
def test_what_is_not_in_shards_is_whole(tmp_path: Path, kind: str, whole: int) -> None:
    size = 4 * sum(p.numel() for p in MODELS["wide"]().parameters())
    layer = 4 * (128 * 128 + 128)
    for peak, resting, _ in together(measure, tmp_path, 4, kind):
        assert whole * size <= resting <= 1.1 * (whole + (4 - whole) / 4) * size
        assert sum(peak.values()) <= 1.1 * (whole + (4 - whole) / 4) * size + 2 * layer


def save(folder: Path, rank: int, world_size: int, kind: str, optimizer: str):
    team = Team(folder, rank, world_size, kind, "memory", model="attentive", optimizer=optimizer)
    for number in range(4):
        team.step(number)
    whole, part = full_state_dict(team.sharded), sharded_state_dict(team.sharded)
    team.collectives.close()
    return whole, part


def go_on(folder: Path, rank: int, world_size: int, kind: str, optimizer: str, whole: dict):
    team = Team(folder, rank, world_size, kind, "memory", model="attentive", optimizer=optimizer)
    team.step(99)  # there is something to replace
    load_full_state_dict(team.sharded, whole)
    again = full_state_dict(team.sharded)
    for number in range(4, 7):
        team.step(number)
    team.sharded.unwrap()
    final = {name: value.clone() for name, value in team.model.state_dict().items()}
    team.collectives.close()
    return again, final


@pytest.mark.parametrize(("first", "second"), [("zero3", "zero1"), *slow(("zero1", "zero3"), ("zero2", "zero2"))])
def test_a_whole_state_goes_on_at_another_world_size(tmp_path: Path, first: str, second: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    saved = together(save, tmp_path / "first", 3, first, "AdamW")
    whole = saved[0][0]
    assert same(whole, merge([part for _, part in reversed(saved)]))
    model = replay(whole)
    results = together(go_on, tmp_path / "second", 2, second, "AdamW", whole)
    for again, final in results:
        assert same(again, whole), "to shards and back, the bits are the original ones"
        assert same(final, model.state_dict())
    with pytest.raises(ValueError, match=r"ranks \[0, 2\] do not make a whole of 3 ranks"):
        merge([saved[0][1], saved[2][1]])


def little_frozen() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 2), torch.nn.Linear(2, 2).requires_grad_(False))


def save_little(folder: Path, rank: int, world_size: int, kind: str):
    team = Team(folder, rank, world_size, kind, "memory", build=little_frozen())
    team.step(0)
    whole = full_state_dict(team.sharded)
    team.collectives.close()
    return whole["model"]


@pytest.mark.parametrize("kind", ["zero1", "zero3"])
def test_a_rank_may_own_nothing_of_what_is_frozen(tmp_path: Path, kind: str) -> None:
    truth = little_frozen().state_dict()
    for found in together(save_little, tmp_path, 2, kind):
        assert found.keys() == truth.keys()
        assert all(torch.equal(found[name], truth[name]) == name.startswith("1.") for name in truth)


class Counting(torch.nn.Linear):
    """Counts its calls in its extra state."""

    seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(x)

    def get_extra_state(self) -> int:
        return self.seen

    def set_extra_state(self, state: int) -> None:
        self.seen = state


def load_counted(folder: Path, rank: int, world_size: int, kind: str):
    team = Team(folder, rank, world_size, kind, "memory", build=torch.nn.Sequential(Counting(6, 2)))
    team.step(0)
    whole = full_state_dict(team.sharded)
    team.step(1)
    load_full_state_dict(team.sharded, whole)
    team.collectives.close()
    return whole["model"]["0._extra_state"], team.model[0].seen


def test_a_whole_state_has_the_extra_state_of_modules(tmp_path: Path) -> None:
    """It was refused on loading, as the model asks for it."""
    assert together(load_counted, tmp_path, 2, "zero3") == [(1, 1)] * 2


def freeze_first(folder: Path, rank: int, world_size: int, kind: str):
    team = Team(folder, rank, world_size, kind, "memory", optimizer="momentum")
    team.model[0].requires_grad_(False)
    for number in range(3):
        team.step(number)
    team.sharded.unwrap()
    team.collectives.close()
    return team.model.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_frozen_before_the_first_step_leaves_the_rest_in_step(tmp_path: Path, kind: str) -> None:
    """Ranks fetched nothing any more of all that lies on one line with it."""
    first, other = together(freeze_first, tmp_path, 2, kind)
    assert same(first, other)
    assert torch.equal(first["0.weight"], MODELS["deep"]()[0].weight)


def replay(whole: dict) -> torch.nn.Module:
    """Torch's own model and optimizer go on from it, with the batches of two ranks."""
    model = MODELS["attentive"]()
    optimizer = MAKERS["AdamW"](model.parameters())
    model.load_state_dict(whole["model"])
    optimizer.load_state_dict(deepcopy(whole["optimizer"]))  # it would go on with these very tensors
    for number in range(4, 7):
        inputs, targets = batch(number)
        parts = []
        for own in (slice(0, 12), slice(12, 24)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[own]), targets[own]).backward()
            parts.append([None if p.grad is None else p.grad * 0.5 for p in model.parameters()])
        for p, one, other in zip(model.parameters(), *parts, strict=True):
            p.grad = None if one is None else one + other
        optimizer.step()
    return model


def same(one, other) -> bool:
    """Whether nested containers hold the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(1, 9))
def test_every_element_has_one_owner(shapes: list[int], world_size: int) -> None:
    layout = Layout(tuple(shapes), world_size)
    owners = Counter(
        (index, element)
        for rank in range(world_size)
        for index, start, stop in layout.fragments(rank)
        for element in range(start, stop)
    )
    assert owners == Counter((index, element) for index, size in enumerate(shapes) for element in range(size))
    for rank in range(world_size):
        assert abs(layout.length(rank) - sum(shapes) / world_size) <= GRAIN + 1
        assert all(start % GRAIN == 0 for _, start, _ in layout.fragments(rank))
        by_runs = sum(
            b - a for i in range(len(shapes)) for owner, a, b in layout.runs(*layout.span(i)) if owner == rank
        )
        assert by_runs == layout.length(rank)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(play: Play, tmp_path: Path, kind: str) -> None:
    fields = {"world_size": 3, "epochs": 3, "checkpoints": Checkpointing(4, "averages", spacing_s=0.0)}
    whole = play_zero(play, kind, partial(task, "AdamW"), checkpoint_folder=tmp_path / "kept", **fields)
    places = sorted((tmp_path / "kept").glob("[0-9]*"))
    assert len(places) == 2
    rest = play_zero(play, kind, partial(task, "AdamW"), resume=places[0], checkpoint_folder=tmp_path / "on", **fields)
    assert rest.digests == whole.digests


def test_the_last_gradient_of_a_step_is_seen_as_one() -> None:
    """It becomes one after the operation that makes it; an optimizer that works in place makes nothing more."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = TensorWatch(lambda: kinds(model, optimizer))
    with watch:
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert watch.peak["gradients"] == watch.peak["parameters"]


@pytest.mark.parametrize(("steps", "watched"), [(5, []), (6, [1])])
def test_the_first_group_of_a_resumed_run_is_formed_before_its_state_is_distributed(
    steps: int, watched: list[int]
) -> None:
    """As in a run from the start. `validate` said that parameters were gone, depending on when orders came."""
    noted: list[int] = []
    watch = SimpleNamespace(regroups=lambda generation, averages: nullcontext(noted.append(generation)))
    rank = RankLoop.__new__(RankLoop)
    rank._rank, rank._before, rank._worker = 0, 5, Worker()
    parts: dict[str, Any] = {
        "_loop": SimpleNamespace(
            total_steps=steps, report=lambda: None, keeper=SimpleNamespace(watch=watch), version=0
        ),
        "_backend": SimpleNamespace(join=lambda order: None),
        "_channel": SimpleNamespace(send=lambda event: None),
    }
    vars(rank).update(parts)
    rank._regroup(Join(0, 1, (0, 1), True, "ranks that exchange gradients"))
    assert noted == watched
