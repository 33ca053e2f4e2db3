"""`replace` for the frozen values of the core, at a tenth of the cost of the one in `dataclasses`; `finite` for records.

State machines that return their next state make some twenty new values for every event; this is what most of that costs.
"""

from __future__ import annotations

import math
from dataclasses import replace as _of_dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    replace = _of_dataclasses  # so that names and types of fields are checked
else:
    _new, _set = object.__new__, object.__setattr__

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of `value`, a frozen dataclass without slots, with `changes`. Its `__post_init__` is not run."""
        new = _new(value.__class__)
        # As it is: half the cost of filling the one that it comes with; a union copies it at once, not key by key.
        _set(new, "__dict__", value.__dict__ | changes)
        return new


def finite(value: float) -> float | None:
    """Return `value` as records have it: None if it is not finite, which JSON cannot say."""
    return value if math.isfinite(value) else None


__all__ = ["finite", "replace"]
