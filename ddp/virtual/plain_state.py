"""Reads the plain state of objects: numbers, texts, small tensors and arrays in their attributes and those of their classes,
counters and random generators, which a step may change. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from random import Random
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, type(None), np.generic)
LISTS = (list, tuple, deque, set, frozenset)
MOST = 1000
"""Most members of a collection that are read; of a larger one, only their number."""
_CLOSED = (nn.Parameter, ModuleType, BuiltinFunctionType, type)
"""What is not looked into."""
_CODE = (FunctionType, *_CLOSED)
"""Globals and members of classes that no step changes."""


def plain_state(*roots: Any) -> dict[tuple[str, ...], str]:
    """Return path -> value of all plain values in these objects, and in what they refer to."""
    values, seen = dict[tuple[str, ...], str](), dict[int, Any]()
    waiting: deque[tuple[tuple[str, ...], Any]] = deque((("",), root) for root in roots)
    while waiting:
        path, value = waiting.popleft()
        if isinstance(value, (*PLAIN, Tensor, np.ndarray, count)) and not isinstance(value, nn.Parameter):
            values[path] = _shown(value)
        elif id(value) not in seen and not isinstance(value, _CLOSED):
            seen[id(value)] = value  # kept, as its id is only unique while it exists
            waiting += [((*path, name), part) for name, part in _parts(value)]
    return values


def _shown(value: Any) -> str:
    """Return a value as text; of a large tensor or array, how often it was changed in place."""
    if isinstance(value, Tensor):
        return repr(value.tolist()) if value.numel() <= MOST else f"{id(value)} {value._version}"
    return repr(value.tolist() if isinstance(value, np.ndarray) and value.size <= MOST else value)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        names = value.__globals__.keys() & set(value.__code__.co_names)
        yield from ((name, value.__globals__[name]) for name in names if not isinstance(value.__globals__[name], _CODE))
        yield from zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True)
    elif isinstance(value, MethodType):
        yield from (("self", value.__self__), ("function", value.__func__))
    elif isinstance(value, partial):
        yield from _numbered((value.func, *value.args))
        yield from value.keywords.items()
    elif isinstance(value, Random):
        yield "state", repr(value.getstate())
    elif isinstance(value, np.random.Generator):
        yield "state", repr(value.bit_generator.state)
    elif isinstance(value, dict):
        yield "length", len(value)
        yield from ((str(key), part) for key, part in value.items() if len(value) <= MOST)
    elif isinstance(value, LISTS):
        yield "length", len(value)
        yield from _numbered(value if len(value) <= MOST else ())
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()
        of_class = {f"{type(value).__name__}.{name}": part for name, part in vars(type(value)).items()}
        yield from ((name, part) for name, part in of_class.items() if isinstance(part, (*PLAIN, dict, *LISTS)))
        yield "()", getattr(type(value), "forward" if isinstance(value, nn.Module) else "__call__", None)


def _numbered(values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(place), value) for place, value in enumerate(values))


def _content(cell: CellType) -> Any:
    """Return the content of a closure's cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
