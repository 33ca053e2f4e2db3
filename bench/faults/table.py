"""Results of the matrix as Markdown tables, by world, number of ranks and mode. Plays nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from bench.base.grouping import grouped
from bench.base.tables import markdown
from bench.faults.meaning import KINDS, FaultOutcome, cells, meaningless
from bench.faults.modes import MODES
from bench.faults.outcome import FaultResult

Group = tuple[str, int, str]
"""(world, number of ranks, mode)."""
COSTS = ("cells", "noticed, s", "going on, s", "full strength, s", "repeated samples", "missing")
HEAD = ("mode", "cells", *(each.value for each in FaultOutcome), "not as documented", "not played", "no meaning")


def groups(results: Iterable[FaultResult]) -> dict[Group, list[FaultResult]]:
    """Group results by world, number of ranks and mode."""
    by_group = grouped(((result.world, result.size, result.cell.mode), result) for result in results)
    return dict(by_group)


def lines(results: Sequence[FaultResult]) -> list[str]:
    """Return the lines of the tables."""
    text = [_lead(results), ""]
    by_group = groups(results)
    for world, size in dict.fromkeys((world, size) for world, size, _ in by_group):
        of = [result for result in results if (result.world, result.size) == (world, size)]
        modes = [mode for mode in MODES if not all(meaningless(cell, world) for cell in cells([mode]))]
        rows = [_row(mode, by_group.get((world, size, mode), []), world) for mode in modes]
        text += [f"## {world}, {size} ranks", "", *markdown(HEAD, rows), "", *_kinds(of), ""]
    heading = () if all(result.good for result in results) else ("## Not as documented", "")
    return [*text, *heading, *deviations(results)]


def _lead(results: Sequence[FaultResult]) -> str:
    worlds = [world for world, _ in dict.fromkeys((result.world, result.size) for result in results)]
    whole = sum(not meaningless(cell, world) for world in worlds for cell in cells(MODES))
    wrong = sum(not result.good for result in results)
    return f"{len(results):,} of {whole:,} cells played, {wrong} not as documented."


def _row(mode: str, results: Sequence[FaultResult], world: str) -> tuple[str, ...]:
    outcomes = Counter(result.outcome for result in results)
    wrong = sum(not result.good for result in results)
    every = cells([mode])
    none = sum(bool(meaningless(cell, world)) for cell in every)
    counts = (*(outcomes[each] for each in FaultOutcome), wrong, len(every) - none - len(results), none)
    return mode, str(len(results)), *map(str, counts)


def _kinds(results: Sequence[FaultResult]) -> list[str]:
    """Return a table of times and costs by kind, of runs that did not end."""
    rows = []
    for kind in KINDS:
        of = [result for result in results if result.cell.kind == kind and result.outcome is not FaultOutcome.ENDED]
        if of:
            rows.append((kind, *costs(of)))
    return ["Runs that did not end, median / worst:", "", *markdown(("kind", *COSTS), rows)]


def costs(results: Sequence[FaultResult]) -> tuple[str, ...]:
    """Return times and costs of runs that did not end, under the heads of `COSTS`."""
    times = (_spread(getattr(result, name) for result in results) for name in ("notice_s", "on_s", "full_s"))
    known = [result.repeated for result in results if result.repeated is not None]
    repeated = f"{median(known):.0f} / {max(known)}" if known else "-"
    return str(len(results)), *times, repeated, str(sum(result.missing for result in results))


def _spread(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.3g} / {max(known):.3g}" if known else "-"


def deviations(results: Sequence[FaultResult]) -> list[str]:
    """Return a table of the results that are not as documented, or a line that says that none is."""
    wrong = [result for result in results if not result.good]
    rows = [(str(result.cell), f"{result.world}, {result.size}", result.verdict, result.error) for result in wrong]
    head = ("cell", "where", "what is wrong", "said")
    return markdown(head, rows) if rows else ["Every cell that was played is as documented."] * bool(results)
