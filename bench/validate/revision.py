"""How baselines change: `propose` writes candidates from runs, `accept` puts them into place, `diff` and `audit` tell.

The only writer of baseline files. A candidate that is worse than what it replaces, or not shown to be as good, is accepted
only with a reason, which it then carries.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
from scipy.special import stdtrit
from tabulate import tabulate

from bench.cells import cells
from bench.runfolder import find_runs, write_text
from bench.validate.library import Library, load
from bench.validate.propose import propose
from bench.validate.reference import Broken, Metric, Reference, sealed, text
from bench.validate.statistics import GATING_SEEDS, LOOKS, Comparison, Moments, compare, power

CONFIDENCE = 0.95
SOON = timedelta(days=14)
NOT_SHOWN = 0.05
"""Level at which a new reference must be shown to be no worse than the old one."""


def write_proposals(
    runs: Path,
    out: Path,
    today: date,
    *,
    mode: str | None = None,
    with_time: bool = False,
    dirty: bool = False,
    because: str | None = None,
) -> list[Reference]:
    """Candidates for the cells in `runs` (of one `mode`, if said), as files in `out`.

    Raises ValueError if a run cannot be read, there is no such cell, or one makes no reference; then nothing is written.
    """
    found, problems = find_runs(runs)
    if problems:
        raise ValueError(f"{problems[0]}; no baseline is made from a tree with unreadable runs")
    chosen = [cell for cell in cells(found) if mode in (None, cell.about.mode)]
    if not chosen:
        raise ValueError(f"no runs of mode {mode} in {runs}" if mode else f"no runs in {runs}")
    made = [propose(cell, today, with_time=with_time, dirty=dirty, because=because) for cell in chosen]
    for reference in made:
        _write(out, reference)
    return made


def _write(folder: Path, reference: Reference) -> None:
    path = folder / reference.place
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text(reference))
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def whole(path: Path) -> Library:
    """The references in a file or folder. Raises ValueError if it is not there, or one of them cannot be trusted."""
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    library = load(path)
    if library.broken:
        raise Broken(library.broken[0])
    return library


def accept(proposals: Path, baselines: Path, because: str | None = None) -> list[str]:
    """Put candidates into place; the differences. Raises ValueError, with nothing written, if one is not shown to be as good
    as what it replaces and no reason is given, or a file cannot be trusted."""
    candidates = whole(proposals).references
    if not candidates:
        raise ValueError(f"{proposals}: no proposals; make some: python -m bench baseline propose RUNS")
    old = {r.config_hash: r for r in (whole(baselines).references if baselines.exists() else ())}
    accepted = []
    for candidate in candidates:
        before = old.get(candidate.config_hash)
        worse = [name for name in candidate.metrics if before and not as_good(before, candidate, name)]
        if worse and not because:
            raise ValueError(
                f"{candidate.name}: {', '.join(worse)} not shown to be as good as in the baseline that it replaces "
                "(python -m bench baseline diff shows it); say why it is right with --because"
            )
        body = candidate.model_dump(mode="json")
        body["supersedes"] = before.digest if before else None
        body["because"] = "; ".join(reason for reason in (candidate.because, because) if reason) or None
        accepted.append((before, sealed(body)))
    for _, reference in accepted:
        _write(baselines, reference)
    return [told for before, reference in accepted for told in (_headline(reference), *_changes(before, reference))]


def as_good(old: Reference, new: Reference, name: str) -> bool:
    """Whether a metric of `new` is shown to be worse than `old`'s by less than the old margin, if at all."""
    if name not in old.metrics:
        return True
    return float(_compared(old.metrics[name], new.metrics[name]).p_noninferior) < NOT_SHOWN


def _compared(old: Metric, new: Metric) -> Comparison:
    return compare(old.moments, new.moments, old.margin, old.resolution)


def diff(old: Library, new: Library) -> list[str]:
    """Lines on what changes from `old` to `new`, by cell: means with intervals, and whether it is as good."""
    before = {r.config_hash: r for r in old.references}
    after = {r.config_hash: r for r in new.references}
    lines = []
    for key, reference in after.items():
        if key in before and before[key].digest == reference.digest:
            continue
        lines += [_headline(reference), *_changes(before.get(key), reference)]
    lines += [f"{r.name} ({r.config_hash[:8]}): not there any more" for key, r in before.items() if key not in after]
    return lines or ["no difference"]


def _headline(reference: Reference) -> str:
    return f"{reference.name} ({reference.config_hash[:8]}, {reference.seeds} seeds, until {reference.expires})"


def _changes(old: Reference | None, new: Reference) -> list[str]:
    rows = []
    for name, metric in new.metrics.items():
        before = old.metrics.get(name) if old else None
        rows.append(
            [
                f"  {name}",
                "-" if before is None else interval(before),
                interval(metric),
                "new" if before is None else _judged(before, metric),
                f"{metric.margin:.4g} ({metric.margin_why})",
            ]
        )
    headers = ["  metric", f"old mean, {CONFIDENCE:.0%}", f"new mean, {CONFIDENCE:.0%}", "new against old", "margin"]
    return tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True).splitlines()


def interval(metric: Metric) -> str:
    """Mean with its interval and the number of seeds, unit of the metric (geometric mean, where logarithms are compared)."""
    values = np.array([value.value for value in metric.values])
    scaled = np.log(values) if metric.scale == "log" else values
    found = Moments.of(scaled)
    reach = float(stdtrit(found.n - 1, (1 + CONFIDENCE) / 2) * found.sd / np.sqrt(found.n))
    low, mean, high = (float(found.mean) + step for step in (-reach, 0.0, reach))
    if metric.scale == "log":
        low, mean, high = (float(np.exp(value)) for value in (low, mean, high))
        return f"{mean:,.0f} [{low:,.0f}, {high:,.0f}] n={len(values)}"
    return f"{mean:.4f} [{low:.4f}, {high:.4f}] n={len(values)}"


def _judged(old: Metric, new: Metric) -> str:
    found = _compared(old, new)
    if float(found.p_better) < NOT_SHOWN:
        return "better by more than the margin"
    if float(found.p_noninferior) < NOT_SHOWN:
        return "not worse"
    return "worse by more than the margin" if float(found.p_inferior) < NOT_SHOWN else "not shown to be as good"


def audit(library: Library, today: date, used: frozenset[str] | None = None) -> tuple[list[str], bool]:
    """A table of the references and whether all are in order. `used`: cells of some runs, to tell which nobody uses."""
    rows = [_audited(reference, today, used) for reference in library.references]
    headers = ["baseline", "cell", "seeds", "created", "expires", "sd", "margin", "power at 3, 5, 8 seeds", "state"]
    lines = tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True).splitlines() if rows else []
    lines += [f"broken: {text}" for text in library.broken]
    sound = not library.broken and not any(reference.expired(today) for reference in library.references)
    return lines or ["no baselines"], sound


def _audited(reference: Reference, today: date, used: frozenset[str] | None) -> list[str]:
    quality = reference.metrics["quality"]
    spread = max(float(quality.moments.sd), quality.resolution / np.sqrt(12))
    shown = ", ".join(f"{float(power(quality.margin / spread, size, reference.seeds)):.3f}" for size in LOOKS)
    states = []
    if reference.expired(today):
        states.append("expired")
    elif reference.expired(today + SOON):
        states.append("expires soon")
    if reference.seeds < GATING_SEEDS:
        states.append("provisional")
    if any(state.get("dirty") for state in reference.git):
        states.append("of a changed source tree")
    if used is not None and reference.config_hash not in used:
        states.append("not used")
    about = [reference.name, reference.config_hash[:8], str(reference.seeds), reference.created, reference.expires]
    return [*about, f"{spread:.4g}", f"{quality.margin:.4g}", shown, ", ".join(states) or "ok"]
