"""A list of optimizers trains as one optimizer of all their groups would."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp import RankFailed
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.replica.optim.optimizers import Several
from ddp.replica.task import Task
from tests.api.conftest import Make
from tests.api.trained import WORLDS, equal
from tests.policies import accepted
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import few, slow

pytestmark = pytest.mark.usefixtures("in_process")

MODES = [("sync", "nccl"), ("sync", "cpu"), ("cadence", "nccl")]


def groups(parameters: Any) -> Any:
    held = list(parameters)
    return torch.optim.Adam([{"params": held[:2], "lr": 0.01}, {"params": held[2:], "lr": 0.02}])


def listed(parameters: Any) -> Any:
    held = list(parameters)
    return [torch.optim.Adam(held[:2], lr=0.01), torch.optim.Adam(held[2:], lr=0.02)]


def mixed(parameters: Any) -> Any:
    weights = [p for p in parameters if p.dim() > 1]  # goes through them twice
    biases = [p for p in parameters if p.dim() == 1]
    return (torch.optim.Adam(weights, lr=0.01), torch.optim.SGD(biases, lr=0.1, momentum=0.9))


def whole_ones(parameters: Any) -> Any:
    held = list(parameters)
    return [torch.optim.SGD(held[:2], lr=0.1), torch.optim.Adafactor(held[2:])]


def task_of(factory: Any) -> Task:
    """The toy with this optimizer."""
    return replace(toy.task(), optimizer=factory)


def fixed(policy: str) -> dict[str, Any]:
    """Windows of fixed counts: nothing depends on who is faster."""
    return accepted(policy, anchor=3, max_anchor=3, base=3, max_batch_diff=0)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("policy", "backend"), MODES)
def test_two_optimizers_end_with_the_bits_of_one_with_two_groups(
    make: Make, world_size: int, policy: str, backend: str
) -> None:
    same: dict[str, Any] = {"world_size": world_size, "policy": policy, "backend": backend, "max_grad_norm": 1.0}
    same |= {**fixed(policy), "lr_scale_ratio": 1.0}
    if policy == "sync":  # else the rate depends on who reports first
        same |= {"schedule": lambda seen: 1.0 - 0.9 * seen}
    one = make(**same, optimizer_factory=groups).run().join()
    assert equal(make(**same, optimizer_factory=listed).run().join().state_dict(), one.state_dict())


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("policy", "backend"), [*slow(("sync", "nccl")), ("sync", "cpu")])
def test_two_optimizers_go_on_bit_for_bit(
    make: Make, tmp_path: Path, world_size: int, policy: str, backend: str
) -> None:
    same: dict[str, Any] = {"world_size": world_size, "policy": policy, "backend": backend, "epochs": 3}
    same |= {"optimizer_factory": mixed, "schedule": lambda seen: 1.0 - 0.9 * seen}
    whole = make(**same, checkpoint_folder=tmp_path).run().join()
    assert equal(make(**same, resume=tmp_path / "000000").run().join().state_dict(), whole.state_dict())
    with pytest.raises(ValueError, match="not the state of this optimizer"):
        make(**same | {"optimizer_factory": groups}, resume=tmp_path).run().join()


@pytest.mark.parametrize(
    ("backend", "averaging"), few(["nccl", "cpu"], [Averaging(optimizer_state=True), Averaging(optimizer_reset=True)])
)
def test_states_of_both_are_averaged_or_begun_anew(play: Play, backend: str, averaging: Averaging) -> None:
    policy = "sync" if backend == "cpu" else "cadence"
    options = {} if backend == "cpu" else fixed(policy)
    one, several = (
        play(policy, backend, partial(task_of, factory), options=options, averaging=averaging).digests
        for factory in (groups, listed)
    )
    assert one == several


@pytest.mark.parametrize("kind", ["zero3", "torch_fsdp", *slow("zero1", "zero2", "torch_ddp")])
def test_every_synchronous_engine_takes_both(play: Play, tmp_path: Path, kind: str) -> None:
    saved: dict[str, Any] = {} if kind.startswith("torch") else {"checkpoints": Checkpointing(1, spacing_s=0.0)}
    one, several = (
        play(
            "sync",
            kind,
            partial(task_of, factory),
            epochs=3,
            checkpoint_folder=tmp_path / name,
            **saved,
        )
        for name, factory in (("one", groups), ("several", listed))
    )
    assert one.digests == several.digests
    if saved:
        place = tmp_path / "several" / "000000"
        again = {"resume": place, "checkpoint_folder": tmp_path / "again", "epochs": 3}
        assert play("sync", kind, partial(task_of, listed), **again).digests == one.digests


@pytest.mark.parametrize("kind", ["zero1", *slow("zero2", "zero3")])
def test_shards_of_both_are_cut_for_another_number_of_ranks(play: Play, tmp_path: Path, kind: str) -> None:
    """Their state was refused as that of another optimizer."""
    digests = set()
    for factory in (groups, listed):
        saved: dict[str, Any] = {
            "checkpoints": Checkpointing(1, spacing_s=0.0),
            "checkpoint_folder": tmp_path / factory.__name__,
        }
        play("sync", kind, partial(task_of, factory), world_size=3, **saved)
        again = {"world_size": 2, "batch_size": 12, "resume": saved["checkpoint_folder"] / "000000"}
        digests |= play("sync", kind, partial(task_of, factory), **again).digests
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("kind", "factory", "said"),
    [
        ("zero1", whole_ones, "Adafactor needs whole tensors in its step"),
        ("torch_zero1", listed, "not of several; use"),
    ],
)
def test_an_engine_that_cannot_says_so(play: Play, kind: str, factory: Any, said: str) -> None:
    with pytest.raises(RankFailed, match=said):
        play("sync", kind, partial(task_of, factory))


def test_a_parameter_of_two_optimizers_is_refused(make: Make) -> None:
    def both(parameters: Any) -> Any:
        return [torch.optim.SGD(parameters, lr=0.1), torch.optim.Adam(list(parameters)[:1])]

    with pytest.raises(RankFailed, match=r"optimizers 0 and 1 of the list both have a parameter of shape \[12, 6\]"):
        make(world_size=1, optimizer_factory=both).run().join()


def test_states_are_those_of_one_optimizer_and_come_back() -> None:
    model = toy.net(norm=False)
    several = Several(listed(model.parameters()))
    twin = toy.net(norm=False)
    twin.load_state_dict(model.state_dict())
    whole = groups(twin.parameters())
    for _ in range(2):
        for net, optimizer in ((model, several), (twin, whole)):
            optimizer.zero_grad()
            toy.loss(net, toy.data()).backward()
            optimizer.step()
    held, other = several.state_dict(), whole.state_dict()
    assert held["param_groups"] == other["param_groups"]
    assert held["state"].keys() == other["state"].keys()
    assert all(equal(held["state"][n], other["state"][n]) for n in other["state"])
    again = Several(listed(model.parameters()))
    again.load_state_dict(held)
    assert set(again.state) == set(model.parameters())
    first: nn.Parameter = next(model.parameters())
    assert torch.equal(again.state[first]["exp_avg"], several.state[first]["exp_avg"])
    assert len(again.state) == 4
    del again.state[first]
    assert first not in again.state


def adagrad(parameters: Any) -> Any:
    made = torch.optim.Adagrad(parameters, lr=0.05)
    for state in made.state.values():
        state["sum"].fill_(0.1)  # which no step would begin with by itself
    return made


def adagrads(parameters: Any) -> Any:
    held = list(parameters)
    return [adagrad(held[:2]), adagrad(held[2:])]


@pytest.mark.parametrize("kind", ["zero1", "torch_fsdp"])
def test_state_that_is_there_from_the_beginning_is_cut_for_each(play: Play, kind: str) -> None:
    whole, several = (
        play("sync", backend, partial(task_of, factory), epochs=1)
        for backend, factory in (("nccl", adagrad), (kind, adagrads))
    )
    for name, value in whole.state().items():
        torch.testing.assert_close(several.state()[name], value, rtol=1e-5, atol=1e-6)
