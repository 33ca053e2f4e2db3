"""How a metric is written: with four decimals, or as many more as a small one needs to say anything. Pure."""

from __future__ import annotations

import math

DECIMALS, DIGITS, MOST = 4, 3, 12
SMALL = 0.05
"""Below this, four decimals are less than `DIGITS` significant digits, about."""


def decimals(level: float) -> int:
    """Decimals for values about as large as `level`."""
    if not math.isfinite(level) or level == 0 or abs(level) >= SMALL:
        return DECIMALS
    return min(DIGITS - 1 - math.floor(math.log10(abs(level))), MOST)


def metric(value: float | None, beside: float | None = None) -> str:
    """`value` as text, `-` where there is none; with the decimals that `beside` has, if it is to be held against that."""
    if value is None:
        return "-"
    text = f"{value:.{decimals(value if beside is None else beside)}f}"
    return text.removeprefix("-") if float(text) == 0 else text
