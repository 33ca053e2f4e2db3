"""SciPy's special functions, by name. To import them takes longer than to judge a run, so that waits until one is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("scipy.special"), name)
