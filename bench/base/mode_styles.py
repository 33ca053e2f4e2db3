"""Colour and marker of every mode, the same in reports and on the dashboard. Imports no matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

SOLO = "solo"
BLUE, VERMILION, GREEN, PINK, GOLD = "#0d5dc2", "#c24700", "#018151", "#c03c8c", "#504f17"
SKY, WINE, OLIVE, INDIGO, TAUPE = "#1c78a4", "#7b1646", "#353e0d", "#2a1a80", "#64564d"
PALETTE = {
    BLUE: "#4c86e1",
    VERMILION: "#ec7616",
    GREEN: "#1dc28f",
    PINK: "#e381c6",
    GOLD: "#f2c33a",
    SKY: "#9ad4fb",
    WINE: "#e25574",
    INDIGO: "#a095f8",
    OLIVE: "#c4b354",
    TAUPE: "#b7bdc3",
}
"""Colour on a light page -> the same on a dark one. Letters can be read in all of them, and whoever is colour-blind tells
them apart: found by a search, held by a test."""
DARK = "; ".join(f"--c{light[1:]}: {dark}" for light, dark in PALETTE.items()) + ";"
"""What a style sheet says of them for a dark page."""
MODES = "/*modes*/"
"""Its place in a style sheet."""
MARKERS = "sDv^oPX><dph*8"
_STYLES = {
    SOLO: ("#000000", "D"),
    "nccl_sync": (BLUE, "s"),
    "nccl_cadence": (VERMILION, "D"),
    "nccl_async": (PINK, "v"),
    "nccl_qsr": (TAUPE, "p"),
    "cpu_sync": (GREEN, "^"),
    "cpu_cadence": (GOLD, "P"),
    "cpu_async": (WINE, "o"),
    "cpu_qsr": (TAUPE, "h"),
    "zero1": (INDIGO, ">"),
    "zero2": (PINK, "<"),
    "zero3": (GOLD, "*"),
    "torch_ddp": (SKY, "d"),
    "torch_fsdp": (WINE, "X"),
    "torch_zero1": (TAUPE, "8"),
    "torch_local_sgd": (OLIVE, "X"),
    "graph_sync": (GREEN, "p"),
    "graph_cadence": (VERMILION, "h"),
}
"""Mode -> (colour, marker), the same on every page. No pair occurs twice, and modes that often appear together have
different colours."""


def mode_style(mode: str) -> tuple[str, str]:
    """Return the colour and marker of a mode; those of an unknown mode follow from its name."""
    if mode in _STYLES:
        return _STYLES[mode]
    number = crc32(mode.encode())
    return list(PALETTE)[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)]


def mode_styles(modes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return mode -> (colour, marker), solo first, then by name. They do not depend on which modes are shown."""
    return {mode: mode_style(mode) for mode in (SOLO, *(each for each in sorted(set(modes)) if each != SOLO))}
