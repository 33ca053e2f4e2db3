"""Errors while data is read.

DataError
├── BadSample    a data set could not give a sample, or gave samples that cannot be collated
└── LateBatch    a batch was not ready within the deadline
"""

from __future__ import annotations

from collections.abc import Sequence


class DataError(Exception):
    """Data cannot be trained on. The message says which samples, and why."""


class BadSample(DataError):
    """A data set could not give a sample, or gave samples that cannot be collated."""


class LateBatch(DataError):
    """A batch was not ready within the deadline."""


def some(indices: Sequence[int]) -> str:
    """Write `indices` for a message: if there are many, the first ones and the last."""
    shown = list(indices) if len(indices) < 10 else [*indices[:8], "...", indices[-1]]
    return f"[{', '.join(map(str, shown))}]"
