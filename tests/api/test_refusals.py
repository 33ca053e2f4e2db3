"""What a user may get wrong: one line with the remedy, before any process starts."""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset, IterableDataset

from ddp import RankFailed, RoundRobinSampler
from tests.api.conftest import Make, right
from tests.runtime import toy


class Named(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": torch.zeros(6)}


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"model_factory": torch.nn.Linear(2, 2).weight}, "model_factory must be a function"),
        ({"optimizer_factory": 3}, "optimizer_factory must be a function"),
        ({"train_step": None}, "train_step must be a function"),
        ({"eval_step": 3, "eval_dataset": toy.data()}, "eval_step must be a function"),
        ({"eval_step": right}, "give both, or neither"),
        ({"eval_dataset": toy.data()}, "give both, or neither"),
        ({"schedule": 0.1}, "schedule must be a function"),
        ({"schedule": StepLR}, "must be a function of the fraction of all training samples seen, from 0 to 1"),
        ({"schedule": partial(StepLR, step_size=3)}, "that gives a factor on the learning rate, such as"),
        ({"schedule": lambda optimizer: StepLR(optimizer, 3)}, "(TypeError: float is not an Optimizer)"),
        ({"schedule": lambda seen: "slow"}, "its factor must be a finite number of 0 or more, not 'slow'"),
        ({"epoch_callback": "x"}, "epoch_callback must be a function"),
        ({"dataset": ()}, "must hold tensors of equal length"),
        ({"dataset": [[1, 2], [3, 4]]}, "must hold tensors of equal length"),
        ({"dataset": (torch.zeros(3), torch.zeros(4))}, "equal lengths, got [3, 4]"),
        ({"dataset": torch.zeros(0, 3)}, "the data set is empty"),
        ({"dataset": 7}, "int is no data set"),
        ({"dataset": {1, 2}}, "set is no data set"),
        ({"dataset": Endless()}, "give a map-style Dataset"),
        ({"sampler": RoundRobinSampler(9, 2, 1)}, "RoundRobinSampler gives the samples of one of 2 ranks"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number from 1 to 1000000000"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be a whole number"),
        ({"epochs": 0}, "epochs=0 must be a whole number from 1 to 1000000"),
        ({"epochs": True}, "epochs=True must be a whole number"),
        ({"epochs": None}, "Give epochs, passes over the data, or steps"),
        ({"seed": -1}, "seed=-1 must be a whole number from 0"),
        ({"world_size": 0}, "world_size=0 must be a whole number from 1 to 64"),
        ({"world_size": 65}, "world_size=65 must be a whole number from 1 to 64"),
        ({"policy": "cadense"}, "did you mean 'cadence'"),
        ({"policy": ["sync"]}, "unknown policy"),
        ({"backend": "ncll"}, "did you mean 'nccl'"),
        ({"anchr": 3}, "did you mean 'anchor'"),
        (
            {"policy": "sync", "anchor": 3},
            "unknown setting of policy 'sync': 'anchor'; choose one of: (there are none)",
        ),
        ({"anchor": 0}, "use anchor=1 or more"),
        ({"anchor": "ten"}, "policy=cadence: Expected `int`, got `str` for `anchor`"),
        ({"overhead_target": 2}, "must lie between 0.01 and 0.5"),
        ({"max_overshoot": 3}, "unknown setting of policy 'cadence': 'max_overshoot'"),
        ({"policy": "async", "max_overshoot": -1}, "or null to"),
        ({"lr_scale_ratio": -1}, "0 leaves the learning rate as it is"),
        ({"lr_scale_ratio": float("nan")}, "must be a finite number from 0 to 1e+06"),
        ({"max_grad_norm": 0.0}, "leave it out for no limit"),
        ({"max_grad_norm": float("inf")}, "leave it out for no limit"),
        ({"speeds": [1.0]}, "speeds has 1 values for 2 ranks; give one for each"),
        ({"speeds": [1.0, 0.0]}, "0.5 makes a rank half as fast"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"deadline_s": 0}, "deadline_s=0 must be a finite number"),
        ({"faults": ["2@40:crash"]}, "fault 2@40:crash is for rank 2, but ranks are 0 to 1"),
        ({"faults": "1@40:crash"}, "must be a list, such as"),
        ({"faults": 5}, "must be a list, such as"),
        ({"speeds": 0.5}, "must be a list, such as"),
        ({"tolerate_loss": "no"}, "must be True or False"),
        ({"drop_last": "no"}, "must be True or False"),
        ({"faults": [40]}, "of the form RANK@STEP:KIND"),
        ({"faults": ["0@4:crash"], "world_size": 1}, "use world_size=2 or more"),
        ({"eval_batch_size": 0}, "eval_batch_size=0 must be"),
        ({"epochs": 10**22}, "epochs=10000000000000000000000 must be a whole number from 1 to 1000000"),
        ({"batch_size": 10**22}, "must be a whole number from 1 to 1000000000"),
        ({"seed": 2**63}, "seed=9223372036854775808 must be a whole number from 0 to 2147483647"),
        ({"prefetch": 10**22}, "must be a whole number from 1 to 1000"),
        ({"prefetch": 3, "loader": "resident"}, "reads nothing ahead"),
        ({"dataset": Named(), "loader": "resident"}, "MapSource gives samples one by one"),
        ({"anchor": 10**22, "max_anchor": 10**23}, "is more steps than there are"),
        ({"lr_scale_ratio": 10**400}, "0 leaves the learning rate as it is"),
        ({"sampler": [None]}, "the sampler must give indices"),
        ({"speeds": torch.tensor(1.0)}, "must be a list, such as [1.0, 0.4]"),
        ({"checkpoint_folder": "somewhere", "checkpoint_unit": ""}, "checkpoint_unit"),
        ({"lr_scale_ratio": 1e308}, "0 leaves the learning rate as it is"),
        ({"partition_ratios": (0.5, 0.6)}, "are 1.1 of the work, not 1; write [0.4545, 0.5455]"),
        ({"partition_ratios": (0.5, 0.3, 0.2)}, "2 ranks"),
        ({"speed_hint": (1.0,)}, "2 ranks"),
        ({"faults": ["1@999999:crash"]}, "fault 1@999999:crash cannot come"),
        ({"faults": ["1@3:raise", "1@5:slow"]}, "cannot come: 1@3:raise ends that rank"),
        ({"faults": ["1@3:link"]}, "fault 1@3:link*2: no collective goes over links here"),
        ({"checkpoint_every": 1}, "checkpoint_every without checkpoint_folder"),
        ({"checkpoint_unit": "averages"}, "checkpoint_unit without checkpoint_folder"),
        ({"checkpoint_folder": ""}, "checkpoint_folder='' is no path"),
        ({"checkpoint_folder": "x", "checkpoint_every": 10**22}, "must be a whole number from 1 to 1000000000"),
        ({"resume": ""}, "resume='' is no path"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Make, change: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        make(**change)
    assert "\n" not in str(caught.value)


def late_buffer(model: torch.nn.Module, batch: Any) -> Tensor:
    if not hasattr(model, "seen"):
        model.register_buffer("seen", torch.zeros(3))
    return model(batch[0]).sum()


class Unnamed(torch.optim.Optimizer):
    """Its rate has a name of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"step_size": 0.1})


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"model_factory": lambda: None}, "the model's factory must return a torch.nn.Module, not None"),
        ({"optimizer_factory": lambda parameters: None}, "must return an optimizer of PyTorch, not None"),
        (
            {"optimizer_factory": lambda parameters: [torch.optim.SGD(parameters), None]},
            "must return an optimizer of PyTorch",
        ),
        (
            {"optimizer_factory": Unnamed},
            "a parameter group of Unnamed has no lr, which is set before every step: name",
        ),
        ({"optimizer_factory": torch.optim.LBFGS}, "take an optimizer whose step needs no closure"),
        (
            {"optimizer_factory": lambda parameters: torch.optim.SGD(toy.net(norm=False).parameters())},
            "make it of those that its factory is given",
        ),
        (
            {"optimizer_factory": lambda given: torch.optim.SGD([*given, torch.zeros(3, requires_grad=True)])},
            "1 of 7 parameters from elsewhere, which each rank would train for itself",
        ),
        ({"train_step": late_buffer, "epochs": 1}, "buffer seen was made after training began"),
        ({"train_step": lambda model, batch: model(batch[0]).sum() * 1j}, "not a tensor of shape (), complex64"),
        ({"train_step": lambda model, batch: model(batch[0]).sum().detach()}, "float32 without gradient"),
    ],
)
def test_what_cannot_train_is_refused_with_the_remedy(make: Make, change: dict[str, Any], remedy: str) -> None:
    with pytest.raises(RankFailed, match=re.escape(remedy)):
        make(**change, world_size=1).run().join()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="use device='auto' or 'cpu'"):
        make(device="cuda")


def test_what_cannot_be_sent_to_a_process_is_named(make: Make) -> None:
    lock = threading.Lock()

    def step(model: Any, batch: Any) -> Any:
        with lock:
            return model(batch[0]).sum()

    with pytest.raises(ValueError, match=r"train_step cannot be sent to the ranks' processes .*must make itself"):
        make(train_step=step).run()
    make(train_step=step, world_size=1).run().join()  # in place nothing is sent


def test_ranks_that_begin_differently_are_told(make: Make) -> None:
    import os

    def model() -> torch.nn.Module:
        net = toy.net(norm=False)
        with torch.no_grad():
            net[0].weight.fill_(os.getpid())  # type: ignore[index, union-attr, operator]
        return net

    with pytest.raises(Exception, match="begin with different parameters") as caught:
        make(model_factory=model).run().join()
    assert not isinstance(caught.value, RankFailed)
