"""Counts a cell's starts without progress in a file in the sweep's folder, as a scheduler would requeue forever."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.results.runfolder import CHECKPOINTS, FAILED
from bench.runner.submitted_cell import SWEEP
from ddp.regular_files import whole_lines

MOST = 3
"""Most starts in a row from the same checkpoint, or from none."""


def in_vain(folder: Path, number: int, place: Path) -> bool:
    """Return whether a cell was started `MOST` times without a newer checkpoint; otherwise count one more start."""
    file, begun = folder / f"{number}.starts", b"%d" % _reached(place, folder)
    with suppress(FileNotFoundError):
        if [*whole_lines(file)][-MOST:] == [begun] * MOST:
            return True
    with file.open("ab") as starts:
        starts.write(begun + b"\n")
    return False


def _reached(place: Path, folder: Path) -> int:
    """Return the number of a run's last checkpoint made since the sweep was submitted; -1 if there is none."""
    if not (noted := folder / SWEEP).exists():  # it is submitted just now
        return -1
    since, last = noted.stat().st_mtime, -1
    beside = [place, place.with_name(place.name + FAILED), *place.parent.glob(f".tmp-{place.name}-*")]
    for made in (each for run in beside for each in (run / CHECKPOINTS).glob("[0-9]*") if each.name.isdecimal()):
        with suppress(FileNotFoundError):  # a later one has taken its place
            last = max(last, int(made.name) if made.stat().st_mtime >= since else -1)
    return last
