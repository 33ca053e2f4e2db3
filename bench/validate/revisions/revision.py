"""How baselines change: `propose` writes candidates from runs, `accept` puts them in place, `diff` and `audit` report.

Nothing else writes baseline files. A candidate that is weaker than what it replaces, in any respect, is accepted only
with a reason, which it then carries.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from tabulate import tabulate

from bench.base import number_format, special
from bench.base.usage import writing
from bench.base.writing import write_text
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate.baselines.folder import Library, files, load
from bench.validate.baselines.reference import Broken, Metric, Reference, read, sealed, text
from bench.validate.revisions.baseline_change import NOT_SHOWN, compared, weaker
from bench.validate.revisions.baseline_history import committed
from bench.validate.revisions.propose import propose
from bench.validate.statistics.rank_tests import limits
from bench.validate.statistics.significance import LOOKS, Moments

CONFIDENCE = 0.95
SOON = timedelta(days=14)


def write_proposals(
    runs: Path,
    out: Path,
    today: date,
    *,
    mode: str | None = None,
    slower: float | None = None,
    dirty: bool = False,
    because: str | None = None,
) -> list[Reference]:
    """Write candidates for the cells in `runs` (of one `mode`, if given) as files into `out`, and return them.

    Raises ValueError, with nothing written, if a run cannot be read, there is no such cell, or a cell makes no
    reference.
    """
    tree, problems = find_runs(runs)
    if problems:
        raise ValueError(f"{problems[0]}; no baseline is made from a tree with unreadable runs")
    chosen = [cell for cell in cells(tree) if mode in (None, cell.about.mode)]
    if not chosen:
        raise ValueError(f"no runs of mode {mode} in {runs}" if mode else f"no runs in {runs}")
    made = [propose(cell, today, slower=slower, dirty=dirty, because=because) for cell in chosen]
    for reference in made:
        _write(out, reference)
    return made


def _write(folder: Path, reference: Reference) -> None:
    path = folder / reference.place
    with writing("a baseline"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text(reference))


def whole(path: Path) -> Library:
    """Read the references in a file or folder. Raises ValueError if the path does not exist, Broken if a reference
    cannot be trusted."""
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    library = load(path)
    if library.broken:
        raise Broken(library.broken[0])
    return library


def some(library: Library, path: Path) -> Library:
    """Return the library. Raises ValueError if it is empty, as nothing could be found wrong in it."""
    if not library.references and not library.broken:
        remedy = "name their folder, or make some: python -m bench baseline propose RUNS"
        raise ValueError(f"{path}: no baselines; {remedy}")
    return library


def accept(proposals: Path, baselines: Path, because: str | None = None) -> list[str]:
    """Move candidates from `proposals` to `baselines`, and remove the files that they replace, whatever their names.
    Returns lines.

    Raises ValueError, with nothing written, if a candidate is weaker than what it replaces and there is no reason, if
    it is older, or if a file cannot be trusted.
    """
    whole(proposals)
    candidates = [(file, read(file)) for file in files(proposals)[0]]
    if not candidates:
        raise ValueError(f"{proposals}: no proposals; make some: python -m bench baseline propose RUNS")
    library = whole(baselines) if baselines.exists() else Library()
    old = {r.config_hash: r for r in library.references}
    both = shlex.join(["python", "-m", "bench", "baseline", "diff", str(baselines), str(proposals)])
    accepted = [
        _accepted(candidate, old.get(candidate.config_hash), because, both, committed(baselines / candidate.place))
        for _, candidate in candidates
    ]
    for _, reference, _ in accepted:
        _write(baselines, reference)
    written = [baselines / made.place for _, made, _ in accepted]
    replaced = [library.places[made.config_hash] for before, made, _ in accepted if before is not None]
    left = _clear(proposals, [*(file for file, _ in candidates), *replaced], written)
    for before, reference, less in accepted:
        left += [_headline(reference), *(f"  asks less: {reason}" for reason in less), *_changes(before, reference)]
    return left


def _accepted(
    new: Reference, old: Reference | None, because: str | None, both: str, before: str | None
) -> tuple[Reference | None, Reference, list[str]]:
    """Return (what it replaces, what is written, in which respects it is weaker). Raises ValueError if it must not be
    accepted.

    `both`: the command that shows old and new; `before`: digest of the version in git.
    """
    if old is not None and new.created < old.created:
        later = f"before the baseline that it would replace ({old.created})"
        raise ValueError(f"{new.name}: proposed on {new.created}, {later}; propose anew")
    less = weaker(old, new) if old is not None else []
    if less and not because:
        reasons = f"it asks less than the baseline that it replaces: {'; '.join(less)}"
        raise ValueError(f"{new.name}: {reasons}; say why it is right with --because; both: {both}")
    body = new.model_dump(mode="json")
    body["supersedes"] = before or (old.digest if old else None)
    # Of a version that git does not know, the reason for which it asks less than the one in git is kept.
    kept = old.because if old is not None and before not in (None, old.digest) else None
    body["because"] = "; ".join(dict.fromkeys(reason for reason in (kept, new.because, because) if reason)) or None
    return old, sealed(body), less


def _clear(proposals: Path, done: Sequence[Path], written: Sequence[Path]) -> list[str]:
    """Remove files that were accepted or replaced, and folders that become empty, but not files that were just written.
    Returns a line for each file that could not be removed."""
    kept, left = {path.resolve() for path in written}, []
    for file in {path.resolve(): path for path in done}.values():
        if file.resolve() in kept:
            continue
        try:
            file.unlink()
            for folder in (file.parent, proposals):
                if file != proposals and folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
        except OSError as error:
            left.append(f"to be removed, and cannot be: {file}: {error.strerror}")
    return left


def diff(old: Library, new: Library) -> list[str]:
    """Return lines on what changes from `old` to `new`, by cell: means with intervals, and whether the new metric is as
    good."""
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
        than_before = ["-", interval(metric), "new"]
        if before is not None:
            than_before = [interval(before), interval(metric), _judged(before, metric)]
        rows.append([f"  {name}", *than_before, f"{metric.margin:.4g} ({metric.margin_why})"])
    means = (f"{age} mean, {CONFIDENCE:.0%}" for age in ("old", "new"))
    return _table(rows, ["  metric", *means, "new against old", "margin"])


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> list[str]:
    return tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True).splitlines() if rows else []


def interval(metric: Metric) -> str:
    """Format the mean (geometric for logarithms) with its interval and the number of seeds, in the metric's unit."""
    values = np.array([value.value for value in metric.values])
    scaled = np.log(values) if metric.scale == "log" else values
    moments = Moments.of(scaled)
    reach = float(special.stdtrit(moments.n - 1, (1 + CONFIDENCE) / 2) * moments.sd / np.sqrt(moments.n))
    low, mean, high = (float(moments.mean) + step for step in (-reach, 0.0, reach))
    if metric.scale == "log":
        low, mean, high = (float(np.exp(value)) for value in (low, mean, high))
        return f"{mean:,.0f} [{low:,.0f}, {high:,.0f}] n={len(values)}"
    middle, *ends = (number_format.metric(value, beside=mean) for value in (mean, low, high))
    return f"{middle} [{', '.join(ends)}] n={len(values)}"


def _judged(old: Metric, new: Metric) -> str:
    comparison = compared(old, new)
    if float(comparison.p_better) < NOT_SHOWN:
        return "better by more than the margin"
    if float(comparison.p_noninferior) < NOT_SHOWN:
        return "not worse"
    return "worse by more than the margin" if float(comparison.p_inferior) < NOT_SHOWN else "not shown to be as good"


def audit(library: Library, today: date, used: frozenset[str] | None = None) -> tuple[list[str], bool]:
    """Return a table of the references, and whether all are in order. `used`: hashes of the cells of some runs, to show
    the others as not used."""
    rows = [_audited(reference, today, used) for reference in library.references]
    headers = ["baseline", "cell", "seeds", "created", "expires", "sd", "margin", "power at 3, 5, 8 seeds", "state"]
    lines = _table(rows, headers)
    lines += [f"broken: {text}" for text in library.broken]
    return lines, not library.broken and not any(reference.expired(today) for reference in library.references)


def _audited(reference: Reference, today: date, used: frozenset[str] | None) -> list[str]:
    quality = reference.metrics["quality"]
    spread = max(float(quality.moments.sd), quality.resolution / np.sqrt(12))
    shown = ", ".join(f"{float(limits(tuple(quality.turned_values), size, quality.margin)[0]):.3f}" for size in LOOKS)
    states = {
        "expired": reference.expired(today),
        "expires soon": reference.expired(today + SOON) and not reference.expired(today),
        "provisional": not reference.gating,
        "of a changed source tree": any(state.get("dirty") for state in reference.git),
        "not used": used is not None and reference.config_hash not in used,
    }
    about = [reference.name, reference.config_hash[:8], str(reference.seeds), reference.created, reference.expires]
    return [
        *about,
        f"{spread:.4g}",
        f"{quality.margin:.4g}",
        shown,
        ", ".join(state for state, holds in states.items() if holds) or "ok",
    ]
