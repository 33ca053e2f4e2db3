"""Reads single environment variables of a launcher; knows no launcher."""

from __future__ import annotations

from collections.abc import Mapping

Environment = Mapping[str, str]


def text(environ: Environment, name: str) -> str:
    """Return the value of a variable. Raises ValueError if it is not set, or empty."""
    if not environ.get(name):
        raise ValueError(f"{name} is not set, though other variables of its launcher are: start the ranks anew")
    return environ[name]


def number(environ: Environment, name: str, default: int | None = None) -> int:
    """Return the integer value of a variable. Raises ValueError."""
    value = environ.get(name, "" if default is None else str(default)).strip()
    if not (value.isascii() and value.isdecimal()):
        what = f"{name}={value!r} is no whole number" if value else f"{name} is not set"
        raise ValueError(f"{what}, though other variables of its launcher are there: start the ranks anew")
    return int(value)
