"""The interface of a guard: a pure function from the replicas' divergence at an average to a verdict on the windows'
length.

A guard sees divergences and steps, but no anchor and no plan. The policy decides what a verdict leads to."""

from __future__ import annotations

from typing import Any, Protocol

from ddp.core.values.frozen import value


@value(frozen=True)
class Report:
    """One average as guards see it."""

    divergence: float
    """Largest of the ranks' ||own - average|| / ||average||."""
    steps: int
    """Most steps of one rank that entered the average."""


KINDS = ("stable", "suppress", "nudge")


@value(frozen=True)
class GuardDecision:
    """`stable`, `suppress` (windows must not grow) or `nudge` (they shrink to `factor`), and the numbers behind it."""

    kind: str
    value: float = 0.0
    """The number that was judged."""
    limit: float = 0.0
    """The limit that it exceeded."""
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not 0 < self.factor <= 1:
            raise ValueError(f"a guard decides {', '.join(KINDS)}, with a factor in (0, 1]; this one decided {self}")


STABLE = GuardDecision("stable")
NUDGE_FACTOR = 0.5


class Guard(Protocol):
    """A frozen dataclass of settings. Its state is a frozen value of its own."""

    def __init__(self, threshold: float) -> None: ...

    def start(self) -> Any:
        """Return the state before the first average."""
        ...

    def update(self, state: Any, report: Report) -> tuple[Any, GuardDecision]:
        """Judge one average."""
        ...
