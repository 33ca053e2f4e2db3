"""Models as flows: `FlowBuilder` writes them, `Graph` runs them, `GraphError` names the node that is wrong.

Owns how a model is put together; knows nothing of data, training or processes.
"""

from ddp.graph.builder import FlowBuilder
from ddp.graph.errors import GraphError
from ddp.graph.graph import Graph

__all__ = ["FlowBuilder", "Graph", "GraphError"]
