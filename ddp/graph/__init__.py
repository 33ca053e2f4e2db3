"""Models as flows: `FlowBuilder` writes them, `Graph` runs them, `GraphError` names the node that is wrong.

Building a model knows nothing of data, training or processes. Training one, on one device or on replicas on several in one
process, is beside it: `setup`, `setup_with`, `DdpConfig`, `DataLoader`. Names are looked up on first use:
building needs no runtime, and naming the engine no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp.graph.builder import FlowBuilder
    from ddp.graph.config import DdpConfig
    from ddp.graph.devices import is_heterogeneous
    from ddp.graph.entry import setup, setup_with
    from ddp.graph.errors import GraphError
    from ddp.graph.graph import Graph
    from ddp.graph.loader import DataLoader, GraphBatch

__all__ = [
    "DataLoader",
    "DdpConfig",
    "FlowBuilder",
    "Graph",
    "GraphBatch",
    "GraphError",
    "is_heterogeneous",
    "setup",
    "setup_with",
]

_HOME = {
    "DataLoader": "loader",
    "DdpConfig": "config",
    "FlowBuilder": "builder",
    "Graph": "graph",
    "GraphBatch": "loader",
    "GraphError": "errors",
    "is_heterogeneous": "devices",
    "setup": "entry",
    "setup_with": "entry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ddp.graph' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ddp.graph.{_HOME[name]}"), name)
