"""Classes and objects as they were made: without what Python and libraries add to them when they are used. Pure."""

from __future__ import annotations

import copy
from contextlib import suppress
from enum import Flag
from functools import cached_property
from typing import Any, Protocol

from torch.distributions.utils import lazy_property

NOISE = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"}
"""Attributes of a class that do not affect its behaviour."""
BUILT = {"complete", "core_schema", "serializer", "validator"}
LATER = {"__slotnames__", "__signature__", *(f"__pydantic_{name}__" for name in BUILT)}
"""Attributes that pickle and pydantic add to a class. Pydantic builds them of the rest, and they hold addresses."""
FILLED = {
    "pydantic._internal._decorators.Decorator": {"cls_ref"},
    "torch._dynamo.convert_frame.ConvertFrameBox": {"error_on_graph_break"},
    "torch.distributions.transforms.Transform": {"_cached_x_y"},
}
"""Class -> attributes in which its objects keep results, or addresses."""


def attributes(kind: type) -> dict[str, Any]:
    """Return the attributes that a class was made with, except noise."""
    made = {name: value for name, value in vars(kind).items() if name not in NOISE | LATER}
    if not made.get("__annotations__", True):  # Python adds an empty dict at the first look
        del made["__annotations__"]
    if Flag in kind.__mro__:  # combinations of members come at their first use
        named = made["_member_map_"].values()
        made["_value2member_map_"] = {member.value: member for member in dict.fromkeys(named)}
    if Protocol in kind.__mro__:  # the first object gives its class an inherited `__init__`
        inherited = [vars(base).get("__init__") for base in kind.__mro__[1:]]
        if any(made.get("__init__") is known for known in inherited):
            made.pop("__init__", None)
    return made


def reduced(value: object) -> str | tuple[Any, ...]:
    """Return what pickle makes of an object, or its attributes if it cannot be pickled."""
    lazy = sorted(_named(value, lazy_property))
    if lazy:  # which of them it was made with cannot be known
        with suppress(Exception):
            value = copy.copy(value)
        for name in lazy:
            with suppress(Exception):
                getattr(value, name)
    try:
        parts = value.__reduce_ex__(4)
        place = 2
    except Exception:  # locks, files, generators of random numbers
        parts, place = (getattr(value, "__dict__", None),), 0
    kept = _named(value, cached_property).union(*(FILLED.get(_path(kind), ()) for kind in type(value).__mro__))
    if isinstance(parts, str) or len(parts) <= place or not (kept or lazy):
        return parts
    return *parts[:place], _without(parts[place], kept, lazy), *parts[place + 1 :]


def _named(value: object, kind: type) -> set[str]:
    """Return the names of an object's descriptors of that kind."""
    return {name for base in type(value).__mro__ for name, known in vars(base).items() if isinstance(known, kind)}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _without(state: Any, kept: set[str], last: list[str]) -> Any:
    """Return a pickled state without the attributes `kept`, and with those of `last` at its end."""
    if isinstance(state, tuple):  # of a class with slots
        return tuple(_without(part, kept, last) for part in state)
    if not isinstance(state, dict):
        return state
    rest = {name: part for name, part in state.items() if name not in kept and name not in last}
    if "__dict__" in rest:  # pydantic
        rest["__dict__"] = _without(rest["__dict__"], kept, last)
    return rest | {name: state[name] for name in last if name in state} or None
