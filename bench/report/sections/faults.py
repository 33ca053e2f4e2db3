"""What went wrong in runs that were not given up for it, and the ledger: that every sample was trained exactly once."""

from __future__ import annotations

from bench.report.page import NONE, Page, plural, table
from bench.schema import Fault, Metrics


def section(page: Page) -> str:
    """A table of faults if there were any, and a line on the ledger."""
    rows = [
        {"mode": f"{m.model} {cell.label}", "seed": str(m.seed), **_row(fault)}
        for cell in page.cells
        for m in (run.metrics for run in cell.runs)
        for fault in m.faults
    ]
    ledger = _ledger([m for cell in page.cells for m in cell.ok])
    if not rows:
        return f"## Ledger\n\n{ledger}" if ledger else ""
    intro = (
        "*Seconds* are since launch, when the fault was noticed. Faults that were made on purpose are in the label of the "
        "mode, as rank@its step:kind."
    )
    return "\n\n".join(part for part in ["## Faults", intro, table(rows, left=6), ledger] if part)


def _row(fault: Fault) -> dict[str, str]:
    return {
        "rank": NONE if fault.rank is None else str(fault.rank),
        "seconds": f"{fault.seconds:.1f}",
        "what happened": fault.text,
        "what was done": fault.action or NONE,
    }


def _ledger(runs: list[Metrics]) -> str:
    """Of the finished runs that kept one."""
    kept = [m.ledger for m in runs if m.ledger is not None]
    if not kept:
        return ""
    proven = sum(ledger.exactly_once for ledger in kept)
    epochs = sum(len(ledger.epochs) for ledger in kept)
    positions = sum(ledger.source == "merged" for ledger in kept)
    return (
        f"Every sample of every epoch was trained exactly once in **{proven} of {plural(len(kept), 'finished run')}** "
        f"({plural(epochs, 'epoch')}; by the positions recorded with every average in {positions}, by number where one rank "
        f"trains all, in {len(kept) - positions})."
    )
