"""Defines `setup` and `setup_with`: one call prepares a graph for training on the available devices.

Owns the order of set-up. Must not know how replicas work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from ddp.graph.config import DdpConfig
from ddp.graph.devices import cuda_devices, describe, resolve
from ddp.graph.errors import GraphError
from ddp.graph.graph import Graph
from ddp.graph.training import OptimizerFactory, Training
from ddp.monitor.timeline import Timeline
from ddp.monitor.track import RunSubject


def setup(graph: Graph, builder: Callable[[torch.device], Graph], optimizer_factory: OptimizerFactory) -> None:
    """Prepare `graph` for training on all CUDA devices, or on the only device. The training loop is the same in both cases.

    `builder(device)` makes a graph like `graph`. `optimizer_factory(parameters)` makes the optimizer of one replica. On one
    device the graph stays where it is, and `builder` is not called. Raises GraphError if the graph is set up already.
    """
    setup_with(graph, builder, optimizer_factory, DdpConfig())


def setup_with(
    graph: Graph,
    builder: Callable[[torch.device], Graph],
    optimizer_factory: OptimizerFactory,
    config: DdpConfig,
) -> None:
    """Do the same as `setup`, with settings. Prints the devices on stderr. Raise GraphError for anything but a graph
    that is not set up yet."""
    if not isinstance(graph, Graph):
        raise GraphError(
            f"setup takes a Graph, made by FlowBuilder.build, not {type(graph).__name__}; FlowBuilder.from_(module).build() "
            "makes one of any module"
        )
    if graph._training is not None:
        raise GraphError("the graph is set up already: build another one, or go on with this one")
    devices = resolve(config.devices) if config.devices is not None else cuda_devices()
    training = Training(graph)
    training.configure(replace(config, devices=devices))
    if len(devices) > 1:
        training.distribute(builder, devices)
    training.set_optimizer(optimizer_factory)
    graph._training = training
    graph.train()
    if config.timeline is not None:
        if isinstance(config.timeline, Timeline):
            hash_of, places = graph.structural_hash, tuple(graph.replica_devices())
            subject = RunSubject(
                "graph",
                "graph",
                places,
                engine="graph",
                speeds=tuple(config.speeds),
                settings={"structural_hash": hash_of},
            )
            config.timeline.begin(subject, here=True)
        training.listen(config.timeline)
    own = next((p.device for p in graph.parameters()), torch.device("cpu"))
    print(f"ddp: {describe(devices if len(devices) > 1 else (own,), config.speeds)}", file=sys.stderr)
