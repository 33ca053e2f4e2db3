"""A body of JSON, edited in one place."""

from __future__ import annotations

import copy
from typing import Any

Keys = tuple[Any, ...]
"""The keys and indices that lead to a place."""


def edited(body: Any, keys: Keys, value: Any) -> Any:
    """Return the same with another value at the end of `keys`; without that key for `KeyError`."""
    other = inner = copy.deepcopy(body)
    for key in keys[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return other
