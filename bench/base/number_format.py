"""How numbers are written: a metric with four decimals, a small one with more; a count with its noun. Pure."""

from __future__ import annotations

import math

DECIMALS, DIGITS, MOST = 4, 3, 12
LARGE = 1e12
"""From here on, digits before the point say nothing: a perplexity that went astray has dozens of them."""
SLOW = 100
"""Below this, a speed without decimals says little, and nothing below one."""
SMALL = 0.05
"""Below this, four decimals are less than `DIGITS` significant digits, about."""


def decimals(level: float) -> int:
    """Return the decimals for values about as large as `level`."""
    if not math.isfinite(level) or level == 0 or abs(level) >= SMALL:
        return DECIMALS
    return min(DIGITS - 1 - math.floor(math.log10(abs(level))), MOST)


def metric(value: float | None, beside: float | None = None) -> str:
    """Write `value`, `-` where there is none; with the decimals of `beside`, if it is to be compared with that."""
    if value is None:
        return "-"
    text = _fixed(value, f".{decimals(value if beside is None else beside)}f")
    return text.removeprefix("-") if float(text) == 0 else text


def grouped(value: float, places: int = 0) -> str:
    """Write `value` with so many decimals, thousands separated."""
    return _fixed(value, f",.{places}f")


def rate(value: float, beside: float | None = None) -> str:
    """Write a speed whole, thousands separated; with `DIGITS` significant digits if it, or what is `beside` it, is slow."""
    level = value if beside is None else beside
    return grouped(value) if abs(level) >= SLOW else f"{value:.{DIGITS}g}"


def _fixed(value: float, form: str) -> str:
    """Write `value` in this form, unless it is immense."""
    return format(value, form if abs(value) < LARGE else f".{DECIMALS}g")


def plural(count: int, noun: str) -> str:
    """Write `1 run`, `2 runs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
