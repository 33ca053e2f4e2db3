"""Works side by side: how long each takes, and as a share of the first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def compare(title: str, works: Mapping[str, Work], trials: int = 11) -> None:
    """Print the time of each, and its ratio to that of the first in the same trial."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(trials):
        for name, work in works.items():
            began = time.thread_time()
            work()
            taken[name].append(time.thread_time() - began)
    first = next(iter(taken.values()))
    print(title)
    for name, times in taken.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(times, first, strict=True)], n=4)
        print(f"  {name:<44} {1e3 * statistics.median(times):9.3f} ms  {middle:.2f} ({low:.2f} to {high:.2f})")
