"""Colour and marker of every mode, the same in reports and on the dashboard. Imports no matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

SOLO = "solo"
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255"),
    *("#999933", "#332288", "#44aa99", "#aa4466", "#6f6f6f"),
)
"""Okabe and Ito's colours, then Paul Tol's muted ones."""
MARKERS = "sDv^oPX><dph*8"
_COLOURS = {
    SOLO: ("#000000", "D"),
    "nccl_sync": ("#0072b2", "s"),
    "nccl_cadence": ("#d55e00", "D"),
    "nccl_async": ("#cc79a7", "v"),
    "nccl_qsr": ("#6f6f6f", "p"),
    "cpu_sync": ("#009e73", "^"),
    "cpu_cadence": ("#e69f00", "P"),
    "cpu_async": ("#56b4e9", "o"),
    "cpu_qsr": ("#aa4466", "h"),
    "zero1": ("#332288", ">"),
    "zero2": ("#44aa99", "<"),
    "zero3": ("#aa4466", "*"),
    "torch_ddp": ("#882255", "d"),
    "torch_fsdp": ("#44aa99", "X"),
    "torch_zero1": ("#6f6f6f", "8"),
    "torch_local_sgd": ("#999933", "X"),
    "graph_sync": ("#009e73", "p"),
    "graph_cadence": ("#d55e00", "h"),
}
"""Mode -> (colour, marker), the same on every page. No pair occurs twice, and modes that often appear together have
different colours."""


def mode_style(mode: str) -> tuple[str, str]:
    """Return the colour and marker of a mode; those of an unknown mode follow from its name."""
    if mode in _COLOURS:
        return _COLOURS[mode]
    number = crc32(mode.encode())
    return PALETTE[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)]


def mode_styles(modes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return mode -> (colour, marker), solo first, then by name. They do not depend on which modes are shown."""
    return {mode: mode_style(mode) for mode in (SOLO, *(each for each in sorted(set(modes)) if each != SOLO))}
