"""`Figure`: a field of a result with its recomputed value, and how both are compared."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import Any

NEAR = 1e-6
"""Relative tolerance, for sums in another order."""


@dataclass(frozen=True)
class Figure:
    """A field, its recorded value, and the recomputed one."""

    name: str
    recorded: Any
    wanted: Any
    slack: float = 0.0
    """Absolute tolerance of a number, besides rounding."""

    @property
    def wrong(self) -> str:
        """A message if the values differ; empty: they do not."""
        if _alike(self.recorded, self.wanted, self.slack):
            return ""
        return f"{self.name} is {_shown(self.recorded)}, but the records give {_shown(self.wanted)}"


def _alike(left: Any, right: Any, slack: float) -> bool:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(_alike(a, b, slack) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_alike(left[key], right[key], slack) for key in left)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return isclose(left, right, rel_tol=NEAR, abs_tol=max(slack, NEAR * NEAR))
    return bool(left == right)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value[:8]))}{', ...' if len(value) > 8 else ''}]"
    return "missing" if value is None else str(value)[:80]
