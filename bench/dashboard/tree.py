"""Finds the runs below a folder: finished ones, and unfinished ones in hidden folders beside their place.

The key of a run is the path of its place below the root (`mlp/nccl_cadence/w2-s0-73976b56`), wherever its files are
now.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from bench.base.paths import searched
from bench.dashboard.about import LEFT, RUNNING, RunCard
from bench.results.audit_file import AUDIT
from bench.results.lease import in_making, occupied
from bench.results.runfolder import CONFIG, EVENTS, GRAPH, METRICS, find_runs, read_object, there
from bench.results.schema import MOST_RANKS
from ddp import regular_files


@dataclass(frozen=True)
class RunPlace:
    """The place of a run's files."""

    key: str
    folder: Path
    making: bool
    """Whether it is not in its final place yet."""
    running: bool
    """Whether the process that writes it is alive."""
    marks: tuple[tuple[int, int], ...]
    """Stamp that changes with configuration, graph, result or audit."""


def scan(root: Path) -> dict[str, RunPlace]:
    """Return the runs below `root`, or the run folder `root` itself, by key, even while it is only a hidden folder
    beside `root`. A run that is being trained again is shown in its current state; an abandoned attempt is shown only
    if the run has no other folder."""
    places: dict[str, RunPlace] = {}
    shut: list[OSError] = []
    for path, subfolders, files in regular_files.walk(root, shut):
        if not {METRICS, EVENTS, CONFIG}.isdisjoint(files):
            subfolders.clear()
            if entry := _entry(root, path):
                places[entry.key] = _best(places.get(entry.key), entry)
            continue
        subfolders[:] = sorted(name for name in subfolders if searched(name) or in_making(path / name))
    for path in _making_of(root):
        if entry := _entry(root, path):
            places[entry.key] = _best(places.get(entry.key), entry)
    for path in (Path(error.filename) for error in shut):
        if entry := _entry(root, path):
            places.setdefault(entry.key, entry)
    return dict(sorted(places.items()))


def _entry(root: Path, path: Path) -> RunPlace | None:
    making = in_making(path)
    name = making.name if making else path.name
    key = name if path.parent == root.parent else path.relative_to(root).with_name(name).as_posix()
    marks = tuple(mark(path / name) for name in (METRICS, CONFIG, GRAPH, AUDIT))
    running = making is not None and ((making.here and making.pid == os.getpid()) or occupied(path))
    return RunPlace(key, path, making is not None, running, marks)


def _making_of(root: Path) -> list[Path]:
    """Return the hidden folders beside `root` in which a run is written that will be `root`."""
    beside = sorted(root.parent.glob(f".tmp-{escape(root.name)}-*")) if root.name else []
    named = ((path, in_making(path)) for path in beside)
    return [
        path
        for path, making in named
        if making
        and making.name == root.name
        and any(os.path.exists(path / name) for name in (METRICS, EVENTS, CONFIG))
    ]


def _best(known: RunPlace | None, other: RunPlace) -> RunPlace:
    return (
        other if known is None else max(known, other, key=lambda place: (place.running, not place.making, place.marks))
    )


def mark(path: Path) -> tuple[int, int]:
    """Return what changes with a file: its time of modification and its size; zeros if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def read(place: RunPlace) -> RunCard:
    """Read the files beside the records. An unreadable file becomes a problem of the card and raises nothing."""
    problems: list[str] = []
    parts = {}
    for name in (CONFIG, GRAPH):
        try:
            parts[name] = read_object(place.folder / name) if there(place.folder / name) else {}
        except ValueError as error:
            problems.append(str(error))
    metrics = None
    if not place.making:
        try:
            runs, unread = find_runs(place.folder)
            metrics = runs[0].metrics if runs else None
            problems += [problem for problem in unread if problem not in problems]
        except ValueError as error:
            problems.append(str(error))
    status = metrics.status if metrics else RUNNING if place.running else LEFT
    about = RunCard(place.key, status, parts.get(CONFIG, {}), parts.get(GRAPH) or None, metrics, tuple(problems))
    if about.claimed > MOST_RANKS:
        much = f"world_size={about.claimed:g}: no run has more than {MOST_RANKS} ranks"
        about = replace(about, problems=(much, *problems))
    return about
