"""What averaging does to whole runs: plain where the options say so, one model with all of them, and no snapshot is torn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ddp.backends import paired_backends
from ddp.core.messages.events import Averaged, Evaluated
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.replica.task import Task, Tensors
from tests.policies import accepted
from tests.runtime import toy
from tests.runtime.averaging.scripted_ranks import OWN, PLAIN_OUTER
from tests.runtime.conftest import Play
from tests.slow import every, few
from tests.spread import spread

pytestmark = pytest.mark.usefixtures("in_process")

CELLS = few(POLICIES, OWN)
EVERYTHING = Averaging(gamma=0.5, elastic=0.5, outer="momentum", outer_momentum=0.3, optimizer_state=True)


def shrink(model: nn.Module, batch: Tensors) -> Tensor:
    """Whoever gets which samples, the gradient is the same."""
    return torch.stack([(parameter.sin() ** 2).sum() for parameter in model.parameters()]).sum()


def shrinking() -> Task:
    return replace(toy.task(samples=192), loss=shrink)


@pytest.mark.parametrize("backend", OWN)
def test_outer_sgd_of_rate_1_leaves_a_whole_run_as_it_is(play: Play, backend: str) -> None:
    """The same bits at the end, by all ranks."""
    policy, options = "cadence", {"anchor": 4, "max_anchor": 4, "max_batch_diff": 0}
    if backend == "cpu":  # where a cadence trains on while an average is in flight
        policy, options = "sync", {}
    runs = [play(policy, backend, shrinking, options=options, averaging=how) for how in (Averaging(), PLAIN_OUTER)]
    assert all(len(run.of(Averaged)) >= 2 * 4 for run in runs)
    assert runs[0].digests == runs[1].digests
    assert len(runs[0].digests) == 1


@pytest.mark.parametrize("backend", paired_backends())
def test_cadence_of_one_step_by_plain_sgd_is_nccl_sync(play: Play, backend: str) -> None:
    task = partial(toy.task, samples=16 * 12)
    sync = play("sync", "nccl", task)
    policy, options = "cadence", {"anchor": 1, "max_anchor": 1, "max_batch_diff": 0}
    if backend == "cpu":  # where a cadence trains on while an average is in flight
        policy, options = "sync", {}
    cadence = play(policy, backend, task, options=options)
    assert len(cadence.of(Averaged)) == 2 * 24
    for name, value in sync.state().items():
        torch.testing.assert_close(cadence.state()[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_a_run_with_every_option_ends_as_one_model(play: Play, policy: str, backend: str) -> None:
    task = partial(toy.task, norm=True, optimizer="Adam", lr=0.01)
    wire = "bfloat16" if backend == "nccl" else "float64"
    played = play(policy, backend, task, averaging=replace(EVERYTHING, wire=wire), speeds=(1.0, 0.4), epochs=4)
    assert len(played.digests) == 1
    assert played.accuracy() > 0.6


class Wide(nn.Module):
    """Two million equal parameters; every gradient is the same for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2_000_000))


def uniform(model: nn.Module, batch: Tensors) -> Tensor:
    assert isinstance(model, Wide)
    low, high = torch.aminmax(model.weight.detach())
    if low != high:
        raise RuntimeError(f"torn: parameters between {float(low)} and {float(high)}")
    return model.weight.sum() * batch[0].mean()


def uniform_metric(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    loss = uniform(model, batch).detach()
    return loss, loss


def wide() -> Task:
    return replace(toy.task(), model=Wide, loss=uniform, evaluate=uniform_metric)


@pytest.mark.parametrize(("policy", "elastic"), every(2, spread(POLICIES, [None, 0.5])))
def test_a_snapshot_is_never_torn(play: Play, policy: str, elastic: float | None) -> None:
    """Law 7: ranks write snapshots of one value each while rounds go on; so are all averages that anyone ever sees."""
    options = accepted(policy, anchor=2, max_anchor=2)
    averaging = Averaging(elastic=elastic)
    played = play(policy, "cpu", wide, options=options, speeds=(1.0, 0.5), epochs=3, averaging=averaging)
    assert len(played.of(Averaged)) >= 2 * 3  # how many there are is a matter of time
    assert len(played.of(Evaluated)) == 2 * 3
    assert len(played.digests) == 1
    assert played.state()["weight"].unique().numel() == 1


def test_a_buffer_leaves_an_infinity_on_a_narrow_wire(play: Play) -> None:
    """It became NaN: an infinity was taken from it, and added again."""
    task = replace(toy.task(), model=toy.Lowest)
    buffers = play("cadence", "nccl", lambda: task, averaging=Averaging(wire="float32")).state()
    assert -5 < float(buffers["lowest"]) < -1
    assert buffers["mask"].tolist() == [0.0, -torch.inf]
