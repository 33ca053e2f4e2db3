"""Values that a checkpoint can hold, because they are read back without unpickling classes (`weights_only`)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch

PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device))
"""Types that are saved unchanged, besides tensors and containers."""


class NotPlain(ValueError):
    """The state has a value that could not be read back."""


def plain(state: Any, what: str) -> Any:
    """Return `state` with NumPy scalars converted to Python's, which can be read back. Raises NotPlain for other types, with
    `what` the state is."""
    if type(state) in (dict, OrderedDict):
        return type(state)((key, plain(value, what)) for key, value in state.items())
    if type(state) in (list, tuple, set):
        return type(state)(plain(value, what) for value in state)
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, torch.Tensor) or type(state) in PLAIN:
        return state
    raise NotPlain(
        f"{what} holds a {type(state).__name__}, and checkpoints hold tensors, numbers, texts, and "
        "lists, tuples, sets and dictionaries of these"
    )
