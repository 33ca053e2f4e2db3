"""Graphs on several devices, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ddp.graph import DdpConfig, Graph, setup_with
from tests.graph.oracle import build, made


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def on(size: int, graph: Graph | None = None, builder: Any = build, **config: Any) -> Graph:
    graph = made() if graph is None else graph
    setup_with(graph, builder, config.pop("optimizer", sgd), DdpConfig(devices=["cpu"] * size, **config))
    return graph


def plain(device: Any = "cpu") -> Graph:
    return build(device, norm=False)


def replicas(graph: Graph) -> list[Graph]:
    assert graph._training is not None
    assert graph._training.replicas is not None
    return list(graph._training.replicas.models)


def backward(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(graph(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
