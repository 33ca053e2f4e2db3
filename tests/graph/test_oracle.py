"""Graph mode against a sequential replay of every rank's batches: bit for bit, for any number of replicas and optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ddp.graph import DataLoader, DdpConfig, Graph, setup_with
from tests.graph.oracle import OPTIMIZERS, Oracle, build, data, distance, equal, made
from tests.slow import every
from tests.spread import spread

WORLDS = [1, 2, 3, 4]
BATCHES = [24, 24, 17, 24, 9, 24, 24, 30, 24, 11]
"""Ten steps, uneven ones among them."""


def replicated(size: int, optimizer: str, graph: Graph | None = None, **config: Any) -> Graph:
    graph = made() if graph is None else graph
    norm, dropout = (
        "norm" in dict(graph.named_children()),
        any(isinstance(m, torch.nn.Dropout) for m in graph.modules()),
    )
    config = {"devices": ["cpu"] * size} | config
    setup_with(graph, lambda d: build(d, norm, 0.25 * dropout), OPTIMIZERS[optimizer], DdpConfig(**config))
    return graph


def batches(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return [data(size, seed) for seed, size in enumerate(sizes)]


def shards(graph: Graph, x: Tensor, y: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
    sizes = graph.shard_sizes() or [len(x)]
    return [[(a, b)] if len(a) else [] for a, b in zip(x.split(sizes), y.split(sizes), strict=True)]


def train(graph: Graph, x: Tensor, y: Tensor) -> float:
    loss = F.cross_entropy(graph(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    graph.step()
    return loss.item()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("size", WORLDS)
def test_ten_steps_with_batch_norm_are_those_of_the_replay_bit_for_bit(size: int, optimizer: str) -> None:
    graph, oracle = replicated(size, optimizer), Oracle(made(), OPTIMIZERS[optimizer])
    for x, y in batches(BATCHES):
        loss = train(graph, x, y)
        assert loss == oracle.step(shards(graph, x, y))
    assert equal(graph, oracle.model)
    assert graph.training_step() == len(BATCHES)
    if graph._training is not None and graph._training.replicas is not None:
        assert all(equal(graph, other) for other in graph._training.replicas.models[1:])


@pytest.mark.parametrize(("size", "optimizer"), every(2, spread(WORLDS, OPTIMIZERS)))
def test_without_batch_norm_it_is_training_on_the_whole_batch(size: int, optimizer: str) -> None:
    """Ten steps within 1e-6 of the parameters, the loss of 200 steps within 1e-3."""
    graph, alone = replicated(size, optimizer, made(norm=False)), made(norm=False)
    single = OPTIMIZERS[optimizer](alone.parameters())
    for step in range(200):
        x, y = data(BATCHES[step % len(BATCHES)], step)
        loss = F.cross_entropy(alone(x), y)
        single.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        single.step()
        assert train(graph, x, y) == pytest.approx(loss.item(), abs=1e-3)
        if step == 9:
            assert distance(graph, alone) <= 1e-6
    if size == 1:
        assert equal(graph, alone)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("counts", [(1.0, 0.4), (1.0, 0.25, 0.6), (1.0, 1.0, 0.5, 0.3)])
def test_windows_of_el_che_are_those_of_the_replay(counts: tuple[float, ...], optimizer: str) -> None:
    """Gradients accumulated over unequal counts, uneven last batches included."""
    x, y = data(211)
    size = len(counts)
    graph = replicated(size, optimizer, speed_hint=counts, max_anchor=2)
    oracle = Oracle(made(), OPTIMIZERS[optimizer])
    graph.set_data_loader(DataLoader((x, y), batch_size=8, seed=5))
    seen = windows = 0
    for epoch in range(2):
        for batch in graph.epoch(epoch):
            loss = F.cross_entropy(graph.forward_batch(batch), batch["target"])
            loss.backward()  # type: ignore[no-untyped-call]
            assert loss.item() == oracle.step([[(part[0], part[1]) for part in mine] for mine in batch.parts])
            graph.step()
            assert graph.shard_sizes() == [sum(sizes) for sizes in batch.sizes]
            windows += len({len(sizes) for sizes in batch.sizes}) > 1
            seen += len(batch)
    assert seen == 2 * 211, "every sample once an epoch, the last partial batch too"
    assert windows, "some ranks ran more batches than others"
    assert equal(graph, oracle.model)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_threads_or_one_after_the_other_is_the_same(dropout: float) -> None:
    runs = []
    for parallel in (True, True, False):
        graph = replicated(3, "momentum", made(dropout=dropout), parallel=parallel, max_anchor=0)
        torch.manual_seed(7)
        losses = [train(graph, x, y) for x, y in batches(BATCHES)]
        runs.append((graph, losses, torch.get_rng_state()))
    assert runs[0][1] == runs[1][1] == runs[2][1]
    assert equal(runs[0][0], runs[1][0])
    assert equal(runs[0][0], runs[2][0])
    assert torch.equal(runs[0][2], runs[2][2]), "the caller's own random numbers go on in the same way"


def test_replicas_draw_numbers_of_their_own() -> None:
    graph = replicated(2, "sgd", made(norm=False, dropout=0.25))
    graph(torch.ones(2, 6))
    masks = graph.tagged("logits")
    assert not torch.equal(masks[0], masks[1])
