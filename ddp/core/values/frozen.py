"""`value`, the decorator of records that are never modified, and `replace` for them; `finite` for records.

Type checkers see frozen dataclasses. At run time they are msgspec's structs, which are made in half the time and copied in
an eighth: the core's state machines create some twenty for every event, and this is most of their cost. The functions of
`dataclasses` accept them. What inherits from a value is `@value` too."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # checks the names and types of what is replaced
    from dataclasses import dataclass as value
    from dataclasses import replace
else:
    replace = msgspec.structs.replace

    def value(*, frozen):
        """Return a decorator that makes of a class a struct with the same fields and methods."""
        return partial(_struct, frozen=frozen)

    def _struct(cls, frozen):
        if not issubclass(cls, msgspec.Struct):  # else a base is one
            body = {name: _default(each) for name, each in vars(cls).items() if name not in ("__dict__", "__weakref__")}
            body["__qualname__"] = cls.__qualname__
            bases = [base for base in cls.__bases__ if base is not object]
            cls = type(msgspec.Struct)(cls.__name__, (*bases, msgspec.Struct), body, frozen=frozen)
        elif any(isinstance(default, dataclasses.Field) for default in cls.__struct_defaults__):
            raise TypeError(f"{cls.__name__} inherits from a value: write its defaults without field()")
        made = _dataclass(cls, frozen)
        cls.__dataclass_fields__, cls.__dataclass_params__ = made.__dataclass_fields__, made.__dataclass_params__
        return cls

    def _default(member):
        if not isinstance(member, dataclasses.Field):
            return member
        if member.default_factory is not dataclasses.MISSING:
            return msgspec.field(default_factory=member.default_factory)
        return msgspec.field(default=msgspec.NODEFAULT if member.default is dataclasses.MISSING else member.default)

    def _dataclass(cls, frozen):
        """Return a dataclass with the fields of `cls`."""
        types = {
            name: kind for base in reversed(cls.__mro__) for name, kind in vars(base).get("__annotations__", {}).items()
        }
        names, defaults = cls.__struct_fields__, cls.__struct_defaults__
        given = dict(zip(names[len(names) - len(defaults) :], map(_field, defaults), strict=True))
        fields = [(name, types[name], given.get(name, dataclasses.field())) for name in names]
        return dataclasses.make_dataclass(cls.__name__, fields, init=False, repr=False, eq=False, frozen=frozen)

    def _field(default):
        factory = getattr(default, "factory", None)
        return dataclasses.field(default=default) if factory is None else dataclasses.field(default_factory=factory)


def finite(value: float) -> float | None:
    """Return `value`, or None if it is not finite, which JSON cannot express."""
    return value if math.isfinite(value) else None


__all__ = ["finite", "replace", "value"]
