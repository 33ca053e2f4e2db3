"""The cost of a sample: norms of gradients, tokens and floating-point operations per second, and memory by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.report.blocks import Block, plain
from bench.report.page import NONE, CellGroup, Page, number, percent, size, table
from bench.results.cells import Cell
from bench.results.schema import Metrics, PeakMemory
from bench.results.schema_speed import GradientNorm, StepCosts

INTRO = (
    "Means over the n finished runs. *Gradient norm*: L2, before clipping, of the first step, the median of some fifty "
    "steps and the last. *FLOP* are those of a forward and a backward pass by torch's counter, which `profile.steps=1` "
    "turns on; *of peak*: over what the devices' makers state. Memory is that of the rank with most of it; *peak* is the "
    "resident memory of its process, *device peak* what was allocated on its device. Columns that no run has are left out."
)
MEMORY: dict[str, Callable[[PeakMemory], Sequence[int | None] | None]] = {
    "parameters": lambda m: m.parameter_bytes,
    "gradients": lambda m: m.gradient_bytes,
    "optimizer": lambda m: m.optimizer_bytes,
    "activations": lambda m: m.activation_bytes,
    "peak": lambda m: m.peak_rss_bytes,
    "device peak": lambda m: m.peak_device_bytes,
}
"""Column -> the bytes of each rank; None: not measured."""


def section(page: Page) -> list[Block]:
    """Return a table for each workload with at least one measured cost."""
    return page.section("What a sample costs", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = [_row(cell) for cell in group.cells if cell.ok]
    known = [key for key in (rows[0] if rows else {}) if any(row[key] != NONE for row in rows)]
    measured = set(known) - {"mode", "n"}
    return [table({key: row[key] for key in known} for row in rows)] if measured else []


def _row(cell: Cell) -> dict[str, str]:
    def of_work(value: Callable[[StepCosts], float | None]) -> float | None:
        return cell.sample(lambda m: value(m.work) if m.work is not None else None).mean

    def of_norm(value: Callable[[GradientNorm], float | None]) -> str:
        return number(of_work(lambda w: value(w.gradient_norm) if w.gradient_norm is not None else None))

    norms = of_norm(lambda g: g.first), of_norm(lambda g: g.p50), of_norm(lambda g: g.last)
    return {
        "mode": plain(cell.marked),
        "n": str(len(cell.one_each)),
        "gradient norm: first / median / last": NONE if set(norms) == {NONE} else " / ".join(norms),
        "tokens/s": number(of_work(lambda w: w.tokens_per_s)),
        "FLOP per sample": number(of_work(lambda w: w.flop_per_sample)),
        "FLOP/s": number(of_work(lambda w: w.flop_per_s)),
        "of peak": percent(of_work(lambda w: w.peak_share), 1),
        **{name: size(cell.sample(_most(kind)).mean) for name, kind in MEMORY.items()},
    }


def _most(kind: Callable[[PeakMemory], Sequence[int | None] | None]) -> Callable[[Metrics], float | None]:
    """Return a function that reads the bytes of the rank that uses most. Its result is None if nothing was measured, or
    all ranks used none (a CPU has no memory of its own)."""

    def most(metrics: Metrics) -> float | None:
        return float(max((value or 0 for value in kind(metrics.memory) or ()), default=0)) or None

    return most
