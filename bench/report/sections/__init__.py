"""The sections of the report, in the order of the page. A section is a function that turns the page into blocks; it
returns no blocks if it has nothing to report."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.report.blocks import Block
from bench.report.page import Page
from ddp.registry import Registry, loaded

_OURS: dict[str, Callable[[Page], list[Block]]] = {
    name: import_module(f"{__name__}.{name}").section
    for name in (
        "answer",
        "every_cell",
        "banner",
        "overview",
        "missing",
        "changes",
        "comparison",
        "scaling",
        "strong",
        "quality",
        "target",
        "curves",
        "profile",
        "faults",
        "slow",
        "goodput",
        "breakdown",
        "idle",
        "communication",
        "costs",
        "elche",
        "timeline",
        "environment",
        "commands",
    )
}
SECTIONS: Registry[Callable[[Page], list[Block]]] = Registry("sections", _OURS, loaded())
"""Name of a section, which is also that of its module -> its function `section`."""
