"""Sharding in real processes: bits, wrong use."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from ddp.comm.transports.base import ExchangeBroken
from ddp.core.errors import EngineError
from ddp.core.samples.spans import Batch
from ddp.gradients import owned
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.memory.flat import FlatState
from ddp.replica.memory.shared_gradients import is_shared
from ddp.sharding.zero1 import Zero1
from ddp.sharding.zero2 import Zero2
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.sharding.sharded_ranks import BATCH, KINDS, MODELS, Team, alone, batch, together
from tests.runtime.sharding.sharded_ranks import OPTIMIZERS as MAKERS
from tests.runtime.sharding.zero_tasks import play_zero, task
from tests.slow import every, slow
from tests.spread import WHOLE


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("world_size", "optimizer", "norm"),
    [
        *slow((1, "AdamW", True), (3, "SGD", True)),
        (2, "AdamW", True),
        (4, "momentum", False),
    ],
)
def test_all_kinds_have_the_bits_of_averaged_gradients(play: Play, world_size: int, optimizer: str, norm: bool) -> None:
    """The last batch of an epoch is smaller; without norm, one of four ranks has nothing of it."""
    fields = {"world_size": world_size, "transport": "memory", "epochs": 2}
    whole = play("sync", "nccl", partial(task, optimizer, norm), **fields)
    for kind in KINDS:
        played = play_zero(play, kind, partial(task, optimizer, norm), **fields)
        assert played.digests == whole.digests, kind
        assert played.accuracy() == whole.accuracy()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_a_gradient_that_shares_memory_is_sent_from_its_own(play: Play, kind: str) -> None:
    """It was weighted and summed in the memory from which the other parameter's was still to come."""
    assert play_zero(play, kind, toy.summed).digests == play("sync", "nccl", toy.summed).digests


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("kind", "task", "copied"), [("zero2", toy.summed, True), ("zero3", toy.task, False)])
def test_only_a_gradient_that_shares_memory_is_copied(
    play: Play, monkeypatch: pytest.MonkeyPatch, kind: str, task, copied: bool
) -> None:
    """A copy of each would be more than the one layer that a rank of `zero3` may hold."""
    found = []
    monkeypatch.setattr(owned, "is_shared", lambda gradient: found.append(is_shared(gradient)) or found[-1])
    play_zero(play, kind, task, epochs=1)
    assert found
    assert any(found) == copied


def train(folder: Path, rank: int, world_size: int, kind: str, transport: str, how: dict, steps: int, samples: int):
    """Steps, and the digests of the whole state after each, as any rank sees it."""
    team = Team(folder, rank, world_size, kind, transport, **how)
    digests = []
    for number in range(steps):
        team.step(number, samples, how.get("limit"))
        with team.sharded.full_parameters():
            digests.append(team.state.digest())
    team.sharded.unwrap()
    final = {name: value.clone() for name, value in team.model.state_dict().items()}
    team.collectives.close()
    return digests, final


REPLAYED = (
    ("attentive", "AdamW", 24, 4, "memory"),
    ("deep", "AdamW", 24, 3, "memory"),
    ("deep", "Adagrad", 24, 2, "memory"),
    ("deep", "momentum", 2, 3, "memory"),
    ("deep", "SGD", 1, 2, "gloo"),
    ("attentive", "AdamW", 24, 2, "gloo"),
)


@pytest.mark.parametrize("how", every(2, [(how,) for how in REPLAYED]), ids=str)
def test_a_replay_of_all_batches_on_one_rank_has_the_same_bits(
    tmp_path: Path, how: tuple[str, str, int, int, str]
) -> None:
    """Ten steps, some of fewer samples than ranks. Parameters may be shared, fixed, unused, used from outside."""
    model, optimizer, samples, world_size, transport = how
    truth = alone(model, optimizer, world_size, 10, samples)
    left_out = list(KINDS)[REPLAYED.index(how) % 3]
    for kind in [each for each in KINDS if each != left_out or WHOLE]:
        (tmp_path / kind).mkdir()
        of = {"model": model, "optimizer": optimizer}
        results = together(train, tmp_path / kind, world_size, kind, transport, of, 10, samples)
        assert all(digests == results[0][0] for digests, _ in results), "ranks are one after every step"
        assert len(set(results[0][0])) == 10
        for name, value in results[0][1].items():
            assert torch.equal(value, truth[name]), (kind, name)


@pytest.mark.parametrize("optimizer", ["SGD", *slow("momentum", "AdamW")])
def test_gloo_with_more_ranks_stays_within_a_millionth(tmp_path: Path, optimizer: str) -> None:
    truth = alone("deep", optimizer, 3, 10)
    kind = {"SGD": "zero1", "momentum": "zero2"}.get(optimizer, "zero3")
    (_, final), *_ = together(train, tmp_path, 3, kind, "gloo", {"optimizer": optimizer}, 10, BATCH)
    for name, value in final.items():
        torch.testing.assert_close(value, truth[name], rtol=0, atol=1e-6)


def test_clipping_is_by_the_norm_over_all_shards(tmp_path: Path) -> None:
    finals = []
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        how = {"optimizer": "SGD", "limit": 0.01}
        finals.append(together(train, tmp_path / kind, 3, kind, "memory", how, 3, BATCH)[0])
    assert finals[0][0] == finals[1][0] == finals[2][0]
    built = MODELS["deep"]()
    moved = MAKERS["SGD"](built.parameters())
    for number in range(3):
        inputs, targets = batch(number)
        moved.zero_grad()
        torch.nn.functional.cross_entropy(built(inputs), targets).backward()
        assert float(torch.nn.utils.clip_grad_norm_(built.parameters(), 0.01)) > 0.01
        moved.step()
    for name, value in built.state_dict().items():
        torch.testing.assert_close(finals[0][1][name], value, rtol=0, atol=1e-6)


def penalized(folder: Path, rank: int, world_size: int, kind: str):
    team = Team(folder, rank, world_size, kind, "memory", optimizer="SGD")
    for number in range(3):
        team.step(number, penalty=0.01)
    team.sharded.unwrap()
    digest = team.state.digest(), float(sum(p.detach().square().sum() for p in team.model.parameters()))
    team.collectives.close()
    return digest


def test_parameters_may_be_used_in_the_loss(tmp_path: Path) -> None:
    """Outside of the model's forward pass, where autograd saves them too."""
    finals = []
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        finals += together(penalized, tmp_path / kind, 2, kind)
    assert len(set(finals)) == 1
    assert 0 < finals[0][1] < 100


def misuse(folder: Path, rank: int, world_size: int):
    team = Team(folder, rank, world_size, "zero3", "memory")
    team.step(0)
    inputs, _ = batch(0)
    with pytest.raises(ValueError, match=r"parameters of 0 lie in shards.*full_parameters\(\).*unwrap"):
        team.model(inputs)
    with pytest.raises(ValueError, match=r"parameters of 4 lie in shards"):
        team.model[4].weight + 1
    assert team.model[4].weight.shape == (40, 40)
    with team.sharded.full_parameters():
        before = team.model(inputs)
    with pytest.raises(ValueError, match=r"sharded already.*wrap a model once"):
        Zero1(team.sharded.site)
    team.sharded.unwrap()
    assert torch.equal(team.model(inputs), before)
    assert type(team.model[4].weight) is torch.nn.Parameter
    torch.manual_seed(rank)
    other = Team.__new__(Team)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    site = replace(team.sharded.site, model=model, state=FlatState(model), optimizer=optimizer)
    other.sharded = Zero2(site)
    with pytest.raises(ValueError, match=r"ranks hold different models.*same seed"):
        other.sharded.begin(Batch(0, rank, rank + 1, 2))
    for wrong in (torch.optim.LBFGS, torch.optim.Adafactor):
        linear = torch.nn.Linear(3, 3)
        site = replace(site, model=linear, state=FlatState(linear), optimizer=wrong(linear.parameters(), lr=0.1))
        with pytest.raises(ValueError, match=f"{wrong.__name__} needs whole tensors.*mode=nccl_sync"):
            Zero1(site)
    stranger = torch.optim.SGD(torch.nn.Linear(3, 3).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="parameters that the model has not"):
        Zero1(replace(site, optimizer=stranger))
    team.collectives.close()


def test_wrong_use_says_what_to_do(tmp_path: Path) -> None:
    together(misuse, tmp_path, 2)


def broken(folder: Path, rank: int, world_size: int, kind: str) -> None:
    team = Team(folder, rank, world_size, kind, "memory")
    team.step(0)
    broken = ExchangeBroken("another rank is gone")
    team.collectives.fence = Mock(side_effect=broken)  # type: ignore[method-assign]  # a stand-in for a method
    with pytest.raises(ExchangeBroken):
        team.sharded.changeable_parameters().__enter__()
    team.collectives.close()
    with pytest.raises(EngineError, match="go on from a checkpoint"):
        team.sharded.begin(Batch(0, rank, rank + 1, 2))


@pytest.mark.parametrize("kind", ["zero3", *slow("zero1")])
def test_no_rank_trains_on_when_some_changes_of_parameters_may_be_lost(tmp_path: Path, kind: str) -> None:
    together(broken, tmp_path, 2, kind)


def test_what_is_exchanged_during_a_backward_pass_is_no_computing(tmp_path: Path) -> None:
    """A slice is cut around those that lie in it, so that a rank's times sum up."""
    meter = Meter(0, tmp_path, torch.device("cpu"))
    began = now()
    for kind in ("exchange", "copy"):
        time.sleep(0.002)
        inner = now()
        time.sleep(0.002)
        meter.add(kind, inner)
    time.sleep(0.002)
    ended = meter.add("backward", began)
    meter.flush()
    written = map(json.loads, (tmp_path / "slices-0.jsonl").read_text().splitlines())
    rows = sorted((row for row in written if row["type"] == "Slice"), key=lambda row: row["at"])
    assert [row["kind"] for row in rows] == ["backward", "exchange", "backward", "copy", "backward"]
    assert sum(row["seconds"] for row in rows) == pytest.approx(ended - began)
    ends = [row["at"] + row["seconds"] for row in rows]
    assert ends[:-1] == pytest.approx([row["at"] for row in rows[1:]])
