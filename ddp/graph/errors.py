"""Defines the exception of the graph builder. Knows nothing of torch."""

from __future__ import annotations


class GraphError(ValueError):
    """Raised for a wrong definition or use of a graph. `node` is the label of the node at fault, with the labels of outer
    graphs before it."""

    def __init__(self, problem: str, node: str = "") -> None:
        super().__init__(problem, node)
        self.problem = problem
        self.node = node

    def __str__(self) -> str:
        return f"node {self.node!r}: {self.problem}" if self.node else self.problem

    def within(self, label: str) -> GraphError:
        """Return the error for the outer graph, in which the inner graph is the node `label`."""
        return GraphError(self.problem, f"{label}.{self.node}" if self.node else label)
