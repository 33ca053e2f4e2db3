"""`collate_fn`: samples are put together as PyTorch's own loader does it with that function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset, default_collate

import ddp
from ddp.data.dataset import as_source, collated
from ddp.trainer.model_trial import sketch
from tests.api.conftest import Make
from tests.api.trained import WORLDS, equal
from tests.runtime import toy

pytestmark = pytest.mark.usefixtures("in_process")

INPUTS, LABELS = toy.data()


class Ragged(Dataset[tuple[Tensor, int]]):
    """Samples of different lengths, which no default puts together."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return INPUTS[index, : 3 + index % 4], int(LABELS[index])


def padded(samples: Any) -> dict[str, Tensor]:
    inputs = torch.stack([nn.functional.pad(row, (0, 6 - len(row))) for row, _ in samples])
    return {"inputs": inputs, "labels": torch.tensor([int(label) for _, label in samples])}


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"])


def accuracy(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["inputs"]).argmax(1) == batch["labels"]).double().mean()


@pytest.mark.parametrize(
    "data", [Ragged(), TensorDataset(INPUTS, LABELS), (INPUTS, LABELS)], ids=["map", "set", "pair"]
)
def test_batches_are_those_of_torchs_loader(data: Any) -> None:
    whole = TensorDataset(*data) if isinstance(data, tuple) else data
    theirs = TorchLoader(whole, batch_size=20, shuffle=False, collate_fn=padded)
    for kind in ("streaming", "resident") if not isinstance(data, Ragged) else ("streaming",):
        with ddp.DataLoader(data, batch_size=20, shuffle=False, collate_fn=padded, loader=kind) as ours:
            assert ours.kind == kind
            for mine, other in zip(ours.epoch(0), theirs, strict=True):
                assert equal(mine, other)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index], LABELS[index]


def test_what_it_draws_is_of_the_seed_in_every_loader() -> None:
    """Batches mixed by `torch.randperm` differed from run to run, as a thread raced with the training for numbers."""

    def mixed(samples: Any) -> Any:
        inputs, labels = default_collate(samples)
        return torch.rand(()) * inputs[torch.randperm(len(inputs))] + inputs, labels

    seen = []
    for seed, (data, kind) in enumerate(((Pairs(), "streaming"), (toy.data(), "streaming"), (toy.data(), "resident"))):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        with ddp.DataLoader(data, batch_size=20, collate_fn=mixed, loader=kind) as loader:
            seen.append([inputs for epoch in range(2) for inputs, _ in loader.epoch(epoch)])
        assert torch.equal(before, torch.get_rng_state())
    for first, second, third in zip(*seen, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_of_one_tensor_samples_are_its_rows() -> None:
    source = collated(as_source(INPUTS), torch.stack)
    assert torch.equal(source.batch(torch.tensor([3, 1])), INPUTS[[3, 1]])
    assert torch.equal(source.to(torch.device("cpu")).batch(torch.tensor([2])), INPUTS[[2]])


@pytest.mark.parametrize("world_size", WORLDS)
def test_it_trains_evaluates_and_goes_on_bit_for_bit(make: Make, tmp_path: Path, world_size: int) -> None:
    same: dict[str, Any] = {"world_size": world_size, "policy": "sync", "epochs": 3, "train_step": loss}
    same |= {"eval_step": accuracy, "eval_dataset": Ragged(), "collate_fn": lambda samples: padded(samples)}
    handle = make(**same, dataset=Ragged(), checkpoint_folder=tmp_path).run()
    whole = handle.join()
    assert (handle.poll_metrics()[-1].eval or 0.0) > 0.7
    rest = make(**same, dataset=Ragged(), resume=tmp_path / "000000").run().join()
    assert equal(rest.state_dict(), whole.state_dict())
    double = {"collate_fn": lambda samples: {**padded(samples), "inputs": 2 * padded(samples)["inputs"]}}
    with pytest.raises(ValueError, match="other training data: its batches"):
        make(**same | double, dataset=Ragged(), resume=tmp_path).run().join()


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("loader", ["resident", "streaming"])
def test_rows_of_tensors_give_the_bits_of_a_data_set_of_them(make: Make, world_size: int, loader: str) -> None:
    same: dict[str, Any] = {"world_size": world_size, "policy": "sync", "train_step": loss, "collate_fn": padded}
    one = make(**same, dataset=TensorDataset(INPUTS, LABELS), loader=loader).run().join()
    plain = {
        "train_step": lambda model, batch: loss(model, {"inputs": batch[0], "labels": batch[1]}),
        "collate_fn": None,
    }
    assert equal(make(**same | plain).run().join().state_dict(), one.state_dict())


def test_what_gives_batches_already_takes_none(make: Make) -> None:
    class Source:
        def __len__(self) -> int:
            return 3

        def batch(self, indices: Tensor) -> Any:
            return (indices,)

        def to(self, device: torch.device) -> Any:
            return self

    with pytest.raises(
        ValueError, match=r"collate_fn with a Source, which gives whole batches: put samples together in"
    ):
        make(dataset=Source(), collate_fn=padded)


def test_samples_that_make_no_batch_are_named(make: Make) -> None:
    with pytest.raises(ddp.RankFailed, match=r"samples .* make no batch: RuntimeError: stack expects each tensor"):
        make(dataset=Ragged(), world_size=1, collate_fn=lambda rows: torch.stack([row for row, _ in rows])).run().join()


def test_a_function_that_gives_nothing_is_told_of_before_a_step_sees_it() -> None:
    for dataset in (Ragged(), TensorDataset(INPUTS, LABELS)):
        source = collated(as_source(dataset), lambda samples: None)
        with pytest.raises(Exception, match=r"make no batch: ValueError: collate_fn returned nothing; it must return"):
            source.batch(torch.tensor([0, 1]))


def test_a_list_of_tensors_is_one_of_samples_where_they_are_put_together() -> None:
    samples = [torch.arange(float(length)) for length in (1, 2, 3)]
    source = collated(as_source(samples, list), list)
    assert [len(sample) for sample in source.batch(torch.tensor([2, 0]))] == [3, 1]


def test_the_layers_of_a_model_are_known_of_samples_that_only_collate_fn_puts_together(make: Make) -> None:
    trainer = make(dataset=Ragged(), collate_fn=padded, train_step=loss)
    assert sketch(trainer._parts, "accuracy") is not None


def test_a_loader_takes_a_list_of_tensors_for_samples_too() -> None:
    samples = [torch.arange(float(length)) for length in (1, 2, 3)]
    with ddp.DataLoader(samples, batch_size=2, shuffle=False, collate_fn=list) as loader:
        assert [[len(sample) for sample in batch] for batch in loader.epoch(0)] == [[1, 2], [3]]


def test_batches_without_strides_are_read_and_leave_the_picture_out(make: Make) -> None:
    """Their bytes and shape were asked for, which torch refuses."""

    def sparse(samples: Any) -> Any:
        return torch.stack([row for row, _ in samples]).to_sparse()

    def nested(samples: Any) -> Any:
        return torch.nested.nested_tensor([row for row, _ in samples]), torch.tensor([label for _, label in samples])

    with ddp.DataLoader(list(zip(INPUTS, LABELS, strict=True)), batch_size=4, collate_fn=sparse) as loader:
        assert next(loader.epoch(0)).is_sparse
    trainer = make(dataset=Ragged(), collate_fn=nested, train_step=lambda model, batch: model(INPUTS).sum())
    assert sketch(trainer._parts, "accuracy") is None
