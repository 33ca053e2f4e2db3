"""The data of a run besides its records: its place, configuration, graph and result. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.results.schema import MOST_RANKS, Metrics
from ddp.engine.modes import mode_name

RUNNING, LEFT = "running", "left"
"""Statuses of a run without a result: its process is alive, or it died before the end of the run."""
BROKEN = "broken"
"""Status of an unreadable folder, of which only the reason is shown."""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True)
class RunCard:
    """One run folder."""

    key: str
    """Path below the root; for a run in progress, its future place."""
    status: str
    """Of `metrics.json`, or one of the above."""
    config: dict[str, Any] = field(default_factory=dict)
    graph: dict[str, Any] | None = None
    metrics: Metrics | None = None
    problems: tuple[str, ...] = ()
    """Errors of the folder's files, a line each."""

    def setting(self, *path: str) -> Any:
        """Return a value of the configuration; None where it has none."""
        value: Any = self.config
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def count(self, *path: str) -> int:
        """Return a whole number of the configuration; 0 where there is none."""
        value = self.setting(*path)
        return value if isinstance(value, int) and value > 0 else 0

    @property
    def name(self) -> tuple[str, str, str]:
        """Model, mode and run id, from the result, else from the configuration, else from the folder's path."""
        if self.metrics is not None:
            return self.metrics.model, self.metrics.mode, self.metrics.run_id
        parts = ("", "", *self.key.split("/"))
        model, run_id = self.setting("model") or parts[-3], self.setting("run_id") or parts[-1]
        return str(model), self._mode or parts[-2], str(run_id)

    @property
    def _mode(self) -> str | None:
        """Mode by the configuration; None: it has none."""
        mode, engine, policy, backend = map(
            _text,
            (self.setting("mode"), self.setting("engine"), self.setting("policy", "name"), self.setting("backend")),
        )
        return mode or (mode_name(engine, policy, backend) if engine else None)

    @property
    def claimed(self) -> int:
        """Ranks that the folder speaks of; 0: of none."""
        return self.metrics.world_size if self.metrics is not None else self.count("world_size")

    @property
    def world_size(self) -> int:
        """Ranks; 0: not known, or no number of ranks."""
        return self.claimed if 0 < self.claimed <= MOST_RANKS else 0

    @property
    def epochs(self) -> int:
        """Epochs planned; 0: not known."""
        return self.metrics.epochs_planned if self.metrics is not None else self.count("train", "epochs")
