"""`bench timeline RUN`: makes the timeline of a run folder again from its records, even if the run was killed.

An unfinished run is in a hidden folder beside its place, with `events.jsonl` as far as it was written, and each rank's
slices. Only whole lines are read: the end of the process may have torn the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from bench.base.usage import writing
from bench.results.analysis.stream import sort
from bench.results.journal import woven
from bench.results.runfolder import EVENTS, METRICS, SLICES, of_run, read_object, there
from bench.timeline import launched_at, write_timeline
from bench.timeline.about import Named, about
from bench.timeline.exports import FORMATS
from ddp.core.errors import ProtocolError
from ddp.process.codec import Record, decode_all, stamp
from ddp.settings import known

T = TypeVar("T")


def rewrite(path: Path) -> Path:
    """Write the timeline's files into the run folder of `path`, and return that folder. Raises ValueError, one line."""
    folder = locate(path)
    _written(folder, write_timeline)
    return folder


def export(path: Path, name: str) -> list[Path]:
    """Write the run of `path` in a foreign format, and return the files. Raises ValueError, one line."""
    write = FORMATS[known("format", name, FORMATS)]
    return _written(locate(path), lambda folder, read, spec, launched: write(folder, sort(read, launched), spec))


def _written(folder: Path, write: Callable[[Path, Sequence[Record], Named, float], T]) -> T:
    spec, timed = about(folder), records(folder)
    if len(timed) < 2:
        raise ValueError(f"{folder / EVENTS}: not the records of a run; nothing is written")
    launched = launched_at(folder)
    if launched is None:
        launched = min((at for at, _ in timed), default=0.0)
    with of_run(folder), writing(f"the timeline to {folder}"):
        return write(folder, [record for _, record in timed], spec, launched)


def _sealed(folder: Path) -> int:
    """Return the number of records by the run's result; 0 if it has none or cannot be read."""
    seal = None
    with suppress(ValueError):
        seal = read_object(folder / METRICS).get("record") if there(folder / METRICS) else None
    lines = seal.get("lines") if isinstance(seal, dict) else 0
    return lines if isinstance(lines, int) else 0


def locate(path: Path) -> Path:
    """Return the run folder at `path`, else the hidden folder of a running or killed run. Raises ValueError."""
    path = Path(path).absolute()
    places = [path, *sorted(path.parent.glob(f".tmp-{path.name}-*"), key=_age, reverse=True)]
    places.append(path.with_name(path.name + ".failed"))
    for place in places:
        if there(place / EVENTS):
            return place
    raise ValueError(f"{path}: no run folder; give one, such as runs/<model>/<mode>/<run_id>")


def _age(folder: Path) -> float:
    try:
        return (folder / EVENTS).stat().st_mtime
    except OSError:
        return 0.0


def records(folder: Path) -> list[tuple[float, Record]]:
    """Read (time, record) of every whole line, in order of time. Raises ValueError that shows the bad line, or says that
    lines of a finished run are missing."""
    try:
        lines = woven(folder / EVENTS, sorted(folder.glob(SLICES)))
        timed = list(zip(map(stamp, lines), decode_all(lines), strict=True))
    except OSError as error:
        raise ValueError(f"{error.filename or folder}: {error.strerror}") from None
    except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / EVENTS}: not the records of a run ({error})") from None
    if len(timed) < (sealed := _sealed(folder)):
        cut = f"{len(timed):,} whole lines of the {sealed:,} that the run had at its end"
        raise ValueError(f"{folder / EVENTS}: {cut}: it was cut; give a whole copy of the run")
    return timed
