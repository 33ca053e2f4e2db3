"""`value`, the decorator of dataclasses that are never modified; `replace` for them, at a tenth of the cost of
`dataclasses.replace`; `finite` for records.

The core's state machines create some twenty new values for every event, and this is most of their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace as _of_dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers reject assignments to fields, and check the names and types of what is replaced
    from dataclasses import dataclass as value

    replace = _of_dataclasses
else:
    _new, _set = object.__new__, object.__setattr__

    def value(*, frozen: bool, slots: bool = False) -> Any:
        """Return a decorator like `dataclass(frozen=True)`, but only type checkers reject assignments: a check at run time
        makes a new value five times as expensive."""
        return dataclass(unsafe_hash=frozen, slots=slots)

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of `value`, a frozen dataclass without slots, with `changes`. Does not run `__post_init__`."""
        new = _new(value.__class__)
        # Assigning `__dict__` takes half the time of updating the new object's own. A dict that `|` or `copy` makes of an
        # object's own one shares its keys, and then each read of a field takes four times as long (CPython 3.11).
        _set(new, "__dict__", {**value.__dict__, **changes})
        return new


def finite(value: float) -> float | None:
    """Return `value`, or None if it is not finite, which JSON cannot express."""
    return value if math.isfinite(value) else None


__all__ = ["finite", "replace", "value"]
