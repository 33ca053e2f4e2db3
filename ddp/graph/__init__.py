"""Models as graphs of modules: `FlowBuilder` builds them, `Graph` runs them, `GraphError` names the node at fault.

Owns building a model, which knows neither data, training nor processes, and training it on one device or on replicas in one
process: `setup`, `setup_with`, `DdpConfig`, `DataLoader`. Names are imported on first use, so building a model imports no
training code, and listing the engine imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp.graph.builder import FlowBuilder as FlowBuilder
    from ddp.graph.config import DdpConfig as DdpConfig
    from ddp.graph.devices import is_heterogeneous as is_heterogeneous
    from ddp.graph.entry import setup as setup
    from ddp.graph.entry import setup_with as setup_with
    from ddp.graph.errors import GraphError as GraphError
    from ddp.graph.graph import Graph as Graph
    from ddp.graph.loader import DataLoader as DataLoader
    from ddp.graph.loader import GraphBatch as GraphBatch

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
