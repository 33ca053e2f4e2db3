"""The sections of the report, in their order. Each is a function from the page to blocks; none: nothing to say."""

from __future__ import annotations

from collections.abc import Callable

from bench.report.blocks import Block
from bench.report.page import Page
from bench.report.sections import (
    banner,
    breakdown,
    changes,
    commands,
    communication,
    comparison,
    curves,
    elche,
    environment,
    faults,
    idle,
    missing,
    overview,
    profile,
    quality,
    scaling,
    strong,
    target,
    timeline,
)

SECTIONS: dict[str, Callable[[Page], list[Block]]] = {
    "banner": banner.section,
    "overview": overview.section,
    "missing": missing.section,
    "changes": changes.section,
    "comparison": comparison.section,
    "quality": quality.section,
    "target": target.section,
    "curves": curves.section,
    "profile": profile.section,
    "scaling": scaling.section,
    "strong": strong.section,
    "faults": faults.section,
    "breakdown": breakdown.section,
    "idle": idle.section,
    "communication": communication.section,
    "elche": elche.section,
    "timeline": timeline.section,
    "environment": environment.section,
    "commands": commands.section,
}
"""Name -> section."""
