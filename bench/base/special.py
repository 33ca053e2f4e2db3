"""SciPy's special functions, by name. Their import takes longer than judging a run, so it happens at the first call."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("scipy.special"), name)
