"""Fixtures of the command line, in this process."""

from tests.bench.conftest import bench, quiet

__all__ = ["bench", "quiet"]
