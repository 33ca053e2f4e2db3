"""`none`: every average is stable."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.guard.base import STABLE, GuardDecision, Report


@dataclass(frozen=True)
class NoGuard:
    """Ignores the threshold."""

    threshold: float = 0.05

    def start(self) -> None:
        """Remember nothing."""

    def update(self, state: None, report: Report) -> tuple[None, GuardDecision]:
        """Return `stable` for every average."""
        return None, STABLE
