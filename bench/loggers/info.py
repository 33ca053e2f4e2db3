"""`RunInfo`: what loggers are told of a run at its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunInfo:
    """A run, before it has a folder."""

    model: str
    mode: str
    run_id: str
    config_hash: str
    world_size: int
    metric: str
    """Name of what evaluation measures."""
