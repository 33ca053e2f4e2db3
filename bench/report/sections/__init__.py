"""The sections of the report, in their order. Each is a function from the page to Markdown; empty: nothing to say."""

from __future__ import annotations

from collections.abc import Callable

from bench.report.page import Page
from bench.report.sections import (
    banner,
    breakdown,
    comparison,
    curves,
    elche,
    environment,
    faults,
    scaling,
    strong,
    timeline,
)

SECTIONS: dict[str, Callable[[Page], str]] = {
    "banner": banner.section,
    "comparison": comparison.section,
    "curves": curves.section,
    "scaling": scaling.section,
    "strong": strong.section,
    "faults": faults.section,
    "breakdown": breakdown.section,
    "elche": elche.section,
    "timeline": timeline.section,
    "environment": environment.section,
}
"""Name -> section."""
