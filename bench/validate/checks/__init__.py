"""The checks, one module each. A check maps a `Case` (a cell and its reference) to a finding, or to None if it does not
apply."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.validate.verdicts.findings import Case, Finding
from ddp.registry import Registry, loaded

Check = Callable[[Case], Finding | None]


def _named(*names: str) -> dict[str, Check]:
    return {name: import_module(f"{__name__}.{name}").check for name in names}


_OURS = _named(
    "status",
    "seeds",
    "figures",
    "breakdown",
    "peak_memory",
    "ledger",
    "visits",
    "data",
    "average",
    "agreement",
    "idle",
    "rate",
    "windows",
    "evaluation",
    "audit",
    "volume",
    "determinism",
    "pairs",
    "diverged",
    "target",
    "samples",
    "curve",
    "speed",
    "variance",
    "train_loss",
    "eval_loss",
    "quality",
)
CHECKS: Registry[Check] = Registry("checks", _OURS, loaded())
"""Name of a check, which is also the name of its module -> the module's function `check`."""

OPTIONAL = _named("rcp")
"""Checks that run only if `--with` names them."""
