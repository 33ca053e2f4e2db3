"""Number formats: a metric with four decimals, a small one with more; a count with its noun. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

DECIMALS, DIGITS, MOST = 4, 3, 12
LARGE = 1e12
"""From here on values are shown in exponential form: a diverged perplexity has dozens of digits."""
SLOW = 100
"""Below this, a speed is shown with significant digits instead of as a whole number."""
MANY, FIRST = 8, 4
"""More values than `MANY` are shortened, to the `FIRST` if they do not repeat."""
SMALL = 0.05
"""Below this, four decimals show fewer than about `DIGITS` significant digits."""


def decimals(level: float) -> int:
    """Return the decimals for values about as large as `level`."""
    if not math.isfinite(level) or level == 0 or abs(level) >= SMALL:
        return DECIMALS
    return min(DIGITS - 1 - math.floor(math.log10(abs(level))), MOST)


def metric(value: float | None, beside: float | None = None) -> str:
    """Format `value`, `-` for None; with the decimals of `beside`, if it is compared with that."""
    if value is None:
        return "-"
    text = _fixed(value, f".{decimals(value if beside is None else beside)}f")
    return text.removeprefix("-") if float(text) == 0 else text


def is_fraction(name: str, values: Iterable[float]) -> bool:
    """Return whether a metric is a share of 1, by its name and values: an accuracy may be given in per cent."""
    return "accuracy" in name and all(0 <= value <= 1 for value in values)


def grouped(value: float, places: int = 0) -> str:
    """Format `value` with `places` decimals and thousands separators."""
    return _fixed(value, f",.{places}f")


def rate(value: float, beside: float | None = None) -> str:
    """Format a speed as a whole number with thousands separators; with `DIGITS` significant digits if it, or `beside`,
    is slow."""
    level = value if beside is None else beside
    return grouped(value) if abs(level) >= SLOW else f"{value:.{DIGITS}g}"


def _fixed(value: float, form: str) -> str:
    """Format `value` by `form`, or in exponential form if it is very large."""
    return format(value, form if abs(value) < LARGE else f".{DECIMALS}g")


def plural(count: int, noun: str) -> str:
    """Write `1 run`, `2 runs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def in_turn(values: Sequence[float]) -> str:
    """Write `1/0.5`; of many values those that repeat in turn, or the first few and how many there are."""
    size = len(values)
    turn = next(n for n in range(1, size + 1) if all(values[k] == values[k % n] for k in range(size))) if size else 0
    if size <= MANY or turn > MANY:
        few = values if size <= MANY else values[:FIRST]
        return "/".join(f"{value:g}" for value in few) + ("" if size <= MANY else f"/… ({size})")
    return "/".join(f"{value:g}" for value in values[:turn]) + " in turn"
