"""A Ray cluster on this host: a head node without cores, and raylets that act as hosts.

Owns its processes and ends each that it started. They connect at this host's own address, which Ray also treats as
loopback.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SMALL = {"object_store_memory": 100 << 20, "include_dashboard": False}
SOON = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 1000}
"""A lost host is noticed in seconds; Ray's own settings take a quarter of a minute."""


class NoRay(Exception):
    """Ray cannot be had here; the text says why."""


class RayCluster:
    """Raylets, each with so many cores."""

    def __init__(self, nodes: int, cores: int) -> None:
        from ray.cluster_utils import Cluster

        self._cores = cores
        head = {**SMALL, "num_cpus": 0, "_system_config": SOON}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._nodes = [self._added() for _ in range(nodes)]

    def _added(self) -> Any:
        return self._cluster.add_node(num_cpus=self._cores, **SMALL)

    def raylet(self, node: int) -> str:
        """Return the process number of a raylet, which its actors have in `RAY_RAYLET_PID`."""
        return str(self._nodes[node].all_processes["raylet"][0].process.pid)

    def kill(self, node: int) -> None:
        """Kill a raylet, as if its host had gone."""
        self._cluster.remove_node(self._nodes[node], allow_graceful=False)

    def replace(self, node: int) -> None:
        """Start another one in its place."""
        self._nodes[node] = self._added()

    def stop(self) -> None:
        """End all."""
        self._cluster.shutdown()


@contextmanager
def ray_cluster(nodes: int = 2, cores: int = 2) -> Iterator[RayCluster]:
    """Yield a running cluster. Raises NoRay."""
    if importlib.util.find_spec("ray") is None:
        raise NoRay("Ray is not installed: pip install 'elche-bench[ray]'")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    made = RayCluster(nodes, cores)
    try:
        yield made
    finally:
        made.stop()
