"""Finds the names that functions read and import in their bytecode, without running them."""

from __future__ import annotations

import dis
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from types import CodeType

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")


def loaded(code: CodeType) -> Iterator[str]:
    """Yield the global names that code reads, nested functions included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from loaded(constant)


def imported(code: CodeType, package: str) -> Iterator[str]:
    """Yield the modules that code imports, nested functions included. For `from a import b`, also yield `a.b`, which
    may be a submodule."""
    steps = list(dis.get_instructions(code))
    for (level, names), step in zip(pairwise(steps), steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            base = "." * (level.argval or 0) + str(step.argval)
            with suppress(ImportError):  # it is heard where the code imports it
                module = importlib.util.resolve_name(base, package)
                yield module
                yield from (f"{module}.{name}" for name in names.argval or ())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imported(constant, package)


def attributes_read(code: CodeType, variable: str) -> set[str] | None:
    """Return the attributes that code reads of a global or closure variable; None if it uses the variable in another
    way."""
    read = set[str]()
    for step, after in pairwise(dis.get_instructions(code)):
        if step.opname in _LOADS and step.argval == variable:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                return None
            read.add(str(after.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = attributes_read(constant, variable)
            if inner is None:
                return None
            read |= inner
    return read
