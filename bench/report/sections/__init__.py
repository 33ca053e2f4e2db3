"""The sections of the report, in their order. Each is a function from the page to blocks; none: nothing to say."""

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
        "quality",
        "target",
        "curves",
        "profile",
        "scaling",
        "strong",
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
"""Name of a section, and of its module -> its function `section`."""
