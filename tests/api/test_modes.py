"""`mode=` names any way of training that there is; what a mode cannot do is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.results.analysis.volume import volume
from bench.results.runfolder import find_runs
from ddp.engine.modes import modes
from ddp.replica.handle import WorkerHandle
from ddp.trainer import TrainedState
from tests.api.conftest import Make, right
from tests.api.trained import equal
from tests.runtime import toy
from tests.slow import slow

IN_STEP = [name for name, mode in modes().items() if mode.alike and mode.backend != "cpu" and name != "solo"]
"""Modes that train as one device on the global batch does."""
FORKED = ("torch_zero1", "torch_local_sgd", "torch_fsdp")
"""PyTorch's, whose ranks must be processes; one of them stands for all."""


def trained(make: Make, mode: str, **more: Any) -> TrainedState:
    size = None if mode == "solo" else 2
    return make(mode=mode, world_size=size, epochs=1, model_factory=lambda: toy.net(norm=False), **more).run().join()


def by_name(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"])


class Named(torch.utils.data.Dataset[Any]):
    """Samples that are dictionaries."""

    def __len__(self) -> int:
        return toy.SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = toy.data()
        return {"inputs": inputs[index], "labels": labels[index]}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", [name for name in modes() if name not in FORKED])
def test_every_mode_trains_a_task_of_a_users_own(make: Make, mode: str) -> None:
    state = trained(make, mode, train_step=by_name, dataset=Named())
    before = toy.net(norm=False).state_dict()
    assert state.params.keys() == before.keys()
    assert all(torch.isfinite(value).all() for value in state.params.values())
    if mode in IN_STEP:
        reference = trained(make, "nccl_sync", train_step=by_name, dataset=Named())
        for name, value in state.params.items():
            torch.testing.assert_close(value, reference.params[name])


def two(parameters: Any) -> Any:
    """Two optimizers, as a list."""
    first, *others = parameters
    return [torch.optim.SGD([first], lr=0.1), torch.optim.SGD(others, lr=0.2)]


def test_pytorchs_local_sgd_takes_several_optimizers(make: Make) -> None:
    state = trained(make, "torch_local_sgd", optimizer_factory=two)
    before = toy.net(norm=False).state_dict()
    assert all((state.params[name] != before[name]).any() for name in before)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_sync", "zero3", "nccl_cadence", *slow("zero1", "graph_sync")])
def test_a_model_that_is_frozen_in_part_sends_what_the_formula_says(make: Make, tmp_path: Path, mode: str) -> None:
    def halved() -> nn.Module:
        model = toy.net(norm=False)
        next(model.parameters()).requires_grad_(False)
        return model

    more: dict[str, Any] = {"model_factory": halved, "epochs": 1, "output": tmp_path, "name": "frozen"}
    handle = make(mode=mode, world_size=2, **more).run()
    handle.join()
    assert handle.folder is not None
    (run,), _ = find_runs(handle.folder)
    metrics = run.metrics
    assert metrics.frozen == next(halved().parameters()).numel()
    known = volume(metrics, run.config)
    assert known.expected is not None
    assert known.expected <= known.bytes <= 1.5 * known.expected


@torch.no_grad()
def shrink(epoch: int, worker: WorkerHandle) -> None:
    for value in (*worker.model.parameters(), worker.model.get_buffer("1.running_mean")):
        value.mul_(0.5 + 0.1 * epoch).clamp_(-0.3, 0.3)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["zero3", *slow("zero1", "zero2")])
def test_what_a_callback_changes_is_kept(make: Make, tmp_path: Path, mode: str) -> None:
    """In `zero3` the changes of the first callback were lost, and the second could read no parameter."""
    same: dict[str, Any] = {"epochs": 3, "transport": "memory", "epoch_callback": shrink}
    truth = make(mode="nccl_sync", **same).run().join().state_dict()
    more = {"checkpoint_folder": tmp_path, "checkpoint_unit": "epochs"}
    assert equal(make(mode=mode, **same, **more).run().join().state_dict(), truth)
    resumed = make(mode=mode, **same, resume=sorted(tmp_path.glob("0*"))[0]).run().join()
    assert equal(resumed.state_dict(), truth)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["nccl_sync", "graph_cadence", *slow("nccl_cadence", "zero1", "zero3")])
def test_a_buffer_leaves_an_infinity(make: Make, mode: str) -> None:
    """It became NaN: an infinity was taken from it, and added again."""
    buffers = make(mode=mode, epochs=1, model_factory=toy.Lowest).run().join().buffers
    assert -5 < float(buffers["lowest"]) < -1
    assert buffers["mask"].tolist() == [0.0, -torch.inf]


def test_solo_is_one_rank_by_itself(make: Make) -> None:
    handle = make(mode="solo", world_size=None, epochs=1).run()
    assert handle.world_size == 1
    handle.join()


def test_a_run_in_graph_mode_is_alone_in_its_process(make: Make) -> None:
    kept = torch.random.get_rng_state()
    with make(mode="graph_sync", epochs=10**6, eval_step=right, eval_dataset=toy.data(20)).run() as run:
        assert run.next_metrics() is not None
        with pytest.raises(RuntimeError, match="without processes of its own"):
            make(mode="graph_cadence").run()
    assert torch.equal(torch.random.get_rng_state(), kept)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"mode": "nccl_synch"}, "unknown mode 'nccl_synch'; did you mean 'nccl_sync'"),
        ({"mode": "nccl_sync", "policy": "sync"}, "policy='sync' with mode='nccl_sync', which names it already"),
        ({"mode": "zero1", "backend": "cpu"}, "backend='cpu' with mode='zero1'"),
        ({"mode": "solo", "world_size": 2}, "world_size=2 with mode='solo', which has one rank"),
        ({"mode": "solo", "world_size": None, "anchor": 3}, "anchor with mode='solo', which has no policy"),
        ({"mode": "graph_sync", "faults": ["1@3:crash"]}, "faults with mode='graph_sync', whose ranks are in this"),
        ({"mode": "torch_fsdp", "checkpoint_folder": "laid"}, "mode='torch_fsdp' makes no checkpoints"),
        ({"mode": "torch_ddp", "transport": "memory"}, "transport='memory' with mode='torch_ddp'"),
    ],
)
def test_what_a_mode_cannot_do(make: Make, given: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy) as error:
        make(**given)
    assert "\n" not in str(error.value)


def test_settings_of_a_mode_are_where_its_policy_begins(make: Make) -> None:
    assert (own := make(mode="graph_cadence")._job.policy) == type(own)(anchor=1, max_anchor=4)  # type: ignore[call-arg]
    assert make(mode="graph_cadence", max_anchor=2)._job.policy == type(own)(anchor=1, max_anchor=2)  # type: ignore[call-arg]


def test_a_trainer_takes_as_many_virtual_ranks_as_the_command(make: Make) -> None:
    """It stopped at 64, which is the most processes."""
    state = make(mode="virtual_nccl_sync", world_size=80, epochs=1, batch_size=2).run().join()
    assert all(torch.isfinite(value).all() for value in state.params.values())
    with pytest.raises(ValueError, match="from 1 to 4096"):
        make(mode="virtual_nccl_sync", world_size=4097)
