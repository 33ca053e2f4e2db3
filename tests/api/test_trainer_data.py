"""Data and batches in every form that a user may have them in."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from ddp import record_scalar
from ddp.data import TensorSource
from tests.api.conftest import Make
from tests.api.trained import WORLDS, all_metrics, equal
from tests.runtime import toy

pytestmark = pytest.mark.usefixtures("in_process")


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.inputs, self.targets = toy.data()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class Records(Pairs):
    def __getitem__(self, index: int) -> Any:
        return {"x": self.inputs[index], "y": int(self.targets[index]), "name": f"sample {index}"}


class Fetching(Pairs):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [super(Fetching, self).__getitem__(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("there is __getitems__")


class Scaled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return 2 * inputs, target


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(
    "dataset",
    [list(toy.data()), TensorDataset(*toy.data()), Pairs(), Fetching(), TensorSource(*toy.data())],
    ids=["list", "TensorDataset", "map-style", "getitems", "source"],
)
def test_the_same_data_in_any_form_gives_the_same_bits(make: Make, dataset: Any, world_size: int) -> None:
    expected = make(world_size=world_size, policy="sync").run().join()
    state = make(world_size=world_size, policy="sync", dataset=dataset).run().join()
    assert equal(state.state_dict(), expected.state_dict())


class Noisy(Pairs):
    """Noise that torch has no part in."""

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), np.random.rand(), random.random()


def test_ranks_draw_numbers_of_their_own_from_numpy_and_python_and_the_same_in_every_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # threads that read ahead draw from the generators of the whole process: each rank has one

    def step(model: nn.Module, batch: Any) -> Tensor:
        for name, drawn in zip(("numpy", "python"), batch[2:], strict=True):
            record_scalar(name, drawn.mean())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    first, again = (
        all_metrics(make(policy="sync", epochs=1, train_step=step, dataset=Noisy()).run())[0].per_rank_scalars
        for _ in range(2)
    )
    for name in ("numpy", "python"):
        assert [rank[name] for rank in again] == pytest.approx([rank[name] for rank in first], rel=1e-12)
        assert abs(first[0][name] - first[1][name]) > 1e-6


@pytest.mark.parametrize("world_size", WORLDS)
def test_batches_may_be_dictionaries(make: Make, world_size: int) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        assert batch["name"][0].startswith("sample ")
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def measure(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        logits = model(batch["x"])
        return nn.functional.cross_entropy(logits, batch["y"]), (logits.argmax(1) == batch["y"]).double().mean()

    handle = make(
        world_size=world_size, dataset=Records(), train_step=step, eval_step=measure, eval_dataset=Records(),
        eval_batch_size=30, policy="sync",
    ).run()  # fmt: skip
    metrics, model = all_metrics(handle), toy.net(norm=True)
    model.load_state_dict(handle.join().state_dict())
    inputs, targets = toy.data()
    logits = model.eval()(inputs).detach()
    assert metrics[-1].eval_loss == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), abs=1e-5)
    assert metrics[-1].eval == pytest.approx(float((logits.argmax(1) == targets).double().mean()))


def test_a_subclass_of_a_tensor_data_set_keeps_its_own_ways(make: Make) -> None:
    plain = make(world_size=1).run().join()
    assert not equal(make(world_size=1, dataset=Scaled(*toy.data())).run().join().state_dict(), plain.state_dict())


def test_a_slice_of_tensors_goes_alone(make: Make) -> None:
    inputs, targets = toy.data()
    parts = (inputs[:52], targets[:52])
    handle = make(dataset=parts, policy="sync").run()
    assert [row.samples for row in all_metrics(handle)] == [52, 52]
    handle.join()


def test_resident_data_without_an_evaluation(make: Make) -> None:
    with make(world_size=1, loader="resident", epochs=1).run() as run:
        assert run.next_metrics() is not None
        run.join()


def test_batches_may_be_named_tuples(make: Make) -> None:
    """As PyTorch's own loader gives them."""

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return Row(torch.ones(6), index % 2)

    def step(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch.point), batch.label)

    make(world_size=1, dataset=Rows(), train_step=step, epochs=1).run().join()


class Row(NamedTuple):
    point: Tensor
    label: int


def test_no_order_is_made_where_nobody_trains(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 million samples it takes seconds, and half a gigabyte."""
    monkeypatch.setattr("ddp.data.epoch_order.order", None)
    make()


def test_complex_data_is_evaluated(make: Make) -> None:
    inputs, labels = toy.data()
    data = torch.complex(inputs, -inputs), labels
    handle = make(
        train_step=lambda model, batch: nn.functional.cross_entropy(model(batch[0].real), batch[1]),
        dataset=data,
        eval_dataset=data,
        eval_step=lambda model, batch: (batch[0].real + batch[0].imag).abs().sum(),
        world_size=1,
    ).run()
    assert [metrics.eval for metrics in all_metrics(handle)] == [0.0, 0.0]
    handle.join()
