"""What the tables share: Markdown, and the circumstances of runs in words. Knows no experiment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.base.number_format import plural
from bench.results.runfolder import Run
from benchmarks import frame

MB = 1e6


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return frame.table(rows, list(headers))


def span(values: Iterable[float], form: str = "{:g}") -> str:
    """Return the range of some numbers: `3`, or `3 to 7`; a dash for none."""
    ordered = sorted(set(values))
    if not ordered:
        return "-"
    ends = dict.fromkeys(form.format(end) for end in (ordered[0], ordered[-1]))
    return " to ".join(ends)


def names(values: Iterable[str | None]) -> str:
    """Return different names in their order, with commas."""
    return ", ".join(dict.fromkeys(value for value in values if value))


def ours(runs: Sequence[Run]) -> str:
    """Return the circumstances of runs as one line: machine, transport, data, sizes, load."""
    if not runs:
        return "Not trained yet."
    results = [run.metrics for run in runs]
    cores = names(f"{m.env.get('cpu')}, {m.env.get('cores')} cores" for m in results)
    loads = [load for m in results if isinstance(load := m.env.get("load_1min"), int | float)]
    disturbed = sum(
        any("disturbed" in warning or "other programs" in warning for warning in m.warnings) for m in results
    )
    return (
        f"Ours: {names(device for m in results for device in m.devices)} ({cores}), "
        f"torch {names(str(m.env.get('torch')) for m in results)}, exchanged through {names(m.transport for m in results)}; "
        f"{span((m.parameters for m in results if m.parameters), '{:,.0f}')} parameters; {names(m.data for m in results)}; "
        f"{_epochs([m.epochs_planned for m in results])}, batches of "
        f"{span(m.batch_size for m in results)} on {span(m.world_size for m in results)} ranks, seed "
        f"{span(m.seed for m in results)}. Load when runs began: {span(loads, '{:.1f}')}; "
        f"{disturbed} of {len(results)} runs say that other programs disturbed them."
    )


def _epochs(planned: Sequence[int]) -> str:
    """Return numbers of epochs in words."""
    return plural(planned[0], "epoch") if len(set(planned)) == 1 else f"{span(planned)} epochs"


def signed(value: float | None, form: str = "{:+.4f}") -> str:
    """Return a difference with its sign; a dash for none."""
    return "-" if value is None else form.format(value)


def shown(value: float | None, form: str = "{:.2f}") -> str:
    """Return a number; a dash for none."""
    return "-" if value is None else form.format(value)
