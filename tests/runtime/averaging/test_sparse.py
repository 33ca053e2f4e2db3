"""Sparse gradients: every mode trains as plain PyTorch does, or refuses them before training by the parameter's name."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.core.errors import RankFailed
from ddp.data.epoch_order import order
from ddp.data.source import TensorSource
from ddp.permutation import derive
from ddp.replica.sparse import declared
from ddp.replica.task import Task
from tests.policies import accepted
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import few

pytestmark = pytest.mark.usefixtures("in_process")

SAMPLES, WORDS, BATCH, SEED = 64, 40, 8, 3
SYNCHRONOUS = ["nccl", "zero1", "zero2", "zero3"]
PEERS = ["torch_ddp", "torch_zero1", "torch_local_sgd", "torch_fsdp"]


def data() -> tuple[Tensor, Tensor]:
    words = torch.randint(0, WORDS, (SAMPLES, 3), generator=torch.Generator().manual_seed(1))
    return words, words.sum(1) % 2


class Bag(nn.Module):
    """Words in, two classes out; `kind`: what makes the gradient."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words: Any = nn.EmbeddingBag(WORDS, 6, sparse=True, mode="sum")
        if kind != "bag":
            self.words = nn.Embedding(WORDS, 6, sparse=kind == "layer", _weight=self.words.weight.detach())
        self.out = nn.Linear(6, 2)

    def forward(self, words: Tensor) -> Tensor:
        if self.kind == "function":
            found = nn.functional.embedding(words, self.words.weight, sparse=True).sum(1)
        else:
            found = self.words(words) if self.kind == "bag" else self.words(words).sum(1)
        return torch.as_tensor(self.out(found))


def task(kind: str, momentum: float = 0.0) -> Task:
    source = partial(TensorSource, *data())
    optimizer = partial(torch.optim.SGD, lr=0.5, momentum=momentum)
    return replace(toy.task(), model=partial(Bag, kind), optimizer=optimizer, train_data=source, eval_data=source)


def plain(ranks: int, momentum: float = 0.0, limit: float = 0.0, epochs: int = 2) -> dict[str, Tensor]:
    """Two epochs of plain PyTorch, with dense gradients."""
    torch.manual_seed(derive(SEED, "init"))
    model = Bag("dense")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    inputs, targets = data()
    for epoch in range(epochs):
        for chosen in order(SEED, epoch, SAMPLES).split(BATCH * ranks):
            optimizer.zero_grad()
            toy.loss(model, (inputs[chosen], targets[chosen])).backward()  # type: ignore[no-untyped-call]
            if limit:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
    return model.state_dict()


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "bag", "function"])
@pytest.mark.parametrize("backend", SYNCHRONOUS)
def test_gradients_that_meet_are_those_of_plain_pytorch(play: Play, backend: str, kind: str) -> None:
    played = play("sync", backend, partial(task, kind, 0.9), max_grad_norm=0.05)
    close(played.state(), plain(2, 0.9, limit=0.05))


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_so_do_those_of_the_graph_engine(play: Play, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr("ddp.graph.balance.CALIBRATION", 10**6)
    options = accepted(policy, anchor=1, max_anchor=1, partition_ratios=(0.5, 0.5))
    graph = importlib.import_module("ddp.graph.engine")
    played = play(policy, "nccl", partial(task, "layer", 0.9), engine=graph, options=options, max_grad_norm=0.05)
    close(played.state(), plain(2, 0.9, limit=0.05))


@pytest.mark.parametrize("kind", ["layer", "bag", "function"])
@pytest.mark.parametrize("limit", [None, 0.05])
def test_a_rank_by_itself_steps_as_plain_pytorch_does(play: Play, kind: str, limit: float | None) -> None:
    played = play("cadence", "nccl", partial(task, kind, 0.9), world_size=1, max_grad_norm=limit)
    close(played.state(), plain(1, 0.9, limit=limit or 0.0))


def test_averaged_replicas_of_one_step_are_its_average_gradient(play: Play) -> None:
    """Of plain SGD; `cpu_sync` averages after every step."""
    close(play("sync", "cpu", partial(task, "layer")).state(), plain(2))


@pytest.mark.parametrize("backend", ["nccl", "cpu"])
@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_windows_train(play: Play, policy: str, backend: str) -> None:
    played = play(policy, backend, partial(task, "layer", 0.9), options=toy.short_windows(policy), max_grad_norm=5.0)
    assert len(played.digests) == 1


@pytest.mark.parametrize(("name", "kind"), few([name for name in PEERS if name != "torch_fsdp"], ["layer", "bag"]))
def test_a_peer_that_can_does(play: Play, name: str, kind: str) -> None:
    close(play("sync", name, partial(task, kind)).state(), plain(2))


@pytest.mark.parametrize(
    ("name", "kind"), [("torch_fsdp", "layer"), ("torch_fsdp", "bag"), *((name, "function") for name in PEERS)]
)
def test_a_peer_that_cannot_says_so_by_the_parameters_name(play: Play, name: str, kind: str) -> None:
    said = f"ValueError: the gradients of parameter words.weight are sparse, which {name} cannot exchange"
    with pytest.raises(RankFailed, match=re.escape(said)):
        play("sync", name, partial(task, kind))


def test_a_layer_says_what_it_will_make_unless_it_is_frozen() -> None:
    model = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Embedding(3, 2), nn.EmbeddingBag(3, 2, sparse=True))
    assert list(declared(model)) == ["0.weight", "2.weight"]
    model[0].requires_grad_(False)
    assert list(declared(model)) == ["2.weight"]
