"""Faults that a run survived, and the ledger: whether every sample was trained exactly once."""

from __future__ import annotations

from bench.base.number_format import plural
from bench.report.blocks import Block, Heading, Text, nonempty, plain
from bench.report.page import NONE, Page, table
from bench.results.schema import FaultRow, Metrics


def section(page: Page) -> list[Block]:
    """Return a table of the faults, if there were any, and a sentence on the ledger."""
    rows = [
        {"mode": plain(f"{m.model} {cell.label}"), "seed": str(m.seed), **_row(fault)}
        for cell in page.cells
        for m in (run.metrics for run in cell.runs)
        for fault in m.faults
    ]
    ledger = _ledger([m for cell in page.cells for m in cell.ok])
    if not rows:
        return [Heading("Was every sample trained once?"), Text(ledger)] if ledger else []
    intro = (
        "*Seconds* are since launch, when the fault was noticed. Faults that were made on purpose are in the label of the "
        "mode, as rank@its step:kind."
    )
    return nonempty(Heading("Faults"), Text(intro), table(rows, left=6), Text(ledger))


def _row(fault: FaultRow) -> dict[str, str]:
    return {
        "rank": NONE if fault.rank is None else str(fault.rank),
        "seconds": f"{fault.seconds:.1f}",
        "what happened": plain(fault.text),
        "what was done": plain(fault.action) or NONE,
    }


def _ledger(runs: list[Metrics]) -> str:
    """Return the sentence that counts the finished runs in which every sample was trained exactly once; empty if no run
    kept a ledger."""
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
