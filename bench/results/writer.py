"""How a run folder gets into place: it is written as a hidden folder beside its place and renamed into it, so that
every visible folder is complete. Owns that atomicity; knows nothing of the files' content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path

from bench.base.usage import reason, writing
from bench.results.lease import Lease, at_work_on, hidden, in_making, making, moved, occupied
from bench.results.runfolder import CHECKPOINTS, FAILED, METRICS, may_be_ok, place, reached, resumable, resuming

TRIES = 5
"""Attempts to rename a folder into a place that another host keeps taking."""


class NotInPlace(OSError):
    """A run is written, but its folder cannot be moved to its place. The message names the folder that holds it."""


class Unwritten(OSError):
    """A run ended because something could not be written or opened. The message says what is kept."""


class RunWriter:
    """A run folder that is being written: write files under `path`, then call `commit` or `discard`.

    Raises ValueError, one line, if the folder cannot be made: read-only disk, a file in the way, or this process
    already writes it; OSError if there is no room.
    """

    def __init__(self, output: Path, model: str, mode: str, run_id: str) -> None:
        self._place = place(output, model, mode, run_id)
        parent = self._place.parent
        self.path = making(self._place)
        if at_work_on(self._place):
            raise ValueError(
                f"{self._place} is in the making by this process already: wait for that run (join()), or give this one "
                "another name or seed"
            )
        with writing(f"runs to {output}"):
            parent.mkdir(parents=True, exist_ok=True)
            _clean(parent, run_id)
            self.path.mkdir()
            self._lease = Lease(self.path)
        self.rivals = self._rivals()
        """Warnings of other processes that may be writing the same run."""

    def _rivals(self) -> list[str]:
        others = [in_making(folder) for folder in self._hidden() if occupied(folder)]
        return [
            f"process {other.process} trains this run, too: of both results the later stays, and each slows the other down"
            for other in others
            if other is not None
        ]

    def _hidden(self) -> list[Path]:
        """Return the folders in which other processes write this run, or wrote it."""
        beside = [folder for folder in self._place.parent.glob(f".tmp-{self._place.name}-*") if folder != self.path]
        return [folder for folder in beside if (own := in_making(folder)) is not None and own.name == self._place.name]

    @property
    def _beside(self) -> Path:
        return self._place.with_name(self._place.name + FAILED)

    def destination(self, status: str) -> Path:
        """Return where the folder goes. An `ok` run replaces what is there. Any other run goes to `<run_id>.failed` if
        the place holds an `ok` run or one with a later checkpoint; if that place does so too, the folder stays where it
        is."""
        return next(self._places(status), self.path)

    def _places(self, status: str) -> Iterator[Path]:
        """Yield the places where the folder may go."""
        return (place for place in (self._place, self._beside) if status == "ok" or not self._outranked(place))

    def _outranked(self, other: Path) -> bool:
        """Return whether this run, which is not `ok`, must not replace another run, as that is `ok` or has a later
        checkpoint."""
        return may_be_ok(other) or reached(other) > reached(self.path)

    def _put(self, status: str) -> Path:
        """Move the folder to its place; return that."""
        spared = None if status == "ok" else self._outranked
        return next((place for place in self._places(status) if _replace(self.path, place, spared)), self.path)

    def commit(self, status: str) -> Path:
        """Rename the folder to its place, and return that (`destination`). Checkpoints are kept until a run of the cell
        is `ok` and in place. Raises NotInPlace, with everything left under `path`."""
        try:
            destination = self._put(status)
        except OSError as error:
            raise NotInPlace(f"the run lies in {self.path}, which cannot be put into place: {reason(error)}") from error
        finally:
            self._lease.release()
        if status == "ok":
            shutil.rmtree(destination / CHECKPOINTS, ignore_errors=True)
            shutil.rmtree(self._beside, ignore_errors=True)
            with suppress(OSError):  # the run is in place; the next one cleans up
                _clean(self._place.parent, self._place.name, everything=True)
        return destination

    def left(self) -> str:
        """Say what is kept of a run that ended here, and how to resume it."""
        if not resumable(self.path):
            if any(
                map(resumable, (self._place, self._beside, *self._hidden()))
            ):  # such as the one that was to be resumed
                return f"the earlier run is as it was; with room again, go on by: {resuming(self._place)}"
            return "nothing is kept, as there is no checkpoint yet"
        last = max((self.path / CHECKPOINTS).glob("[0-9]*"))
        place = self.path if may_be_ok(self._place) else self._place  # a place with a finished run is not resumed
        return f"the last checkpoint is {last}; with room again, go on by: {resuming(place)}"

    def discard(self, copied: bool = False) -> None:
        """Remove what was written, unless it can be resumed; remove it also if its checkpoint is a copy (`copied`) of
        another's."""
        self._lease.release()
        if copied or not resumable(self.path):
            shutil.rmtree(self.path, ignore_errors=True)


def _replace(source: Path, destination: Path, spared: Callable[[Path], bool] | None = None) -> bool:
    """Rename a folder over another one, which is moved aside first; `_clean` puts it back if this process dies in
    between.

    Returns False, with nothing changed, if `spared` accepts what was there. A shared file system may show a state a
    minute old, so the code does not look before it acts: errors of the renaming tell.
    """
    aside = moved(destination)
    for left in reversed(range(TRIES)):
        with suppress(OSError):
            os.utime(destination)  # renew the lease of the folder aside: else another host would put it back at once
        with suppress(FileNotFoundError):
            os.rename(destination, aside)
            if spared is not None and spared(aside):
                with suppress(OSError):  # a third host's run is already there: `_clean` decides which stays
                    os.rename(aside, destination)
                return False
        try:
            os.rename(source, destination)
        except OSError as error:
            others = error.errno in (
                EEXIST,
                ENOTEMPTY,
            )  # another host's run came in between, or it put back the folder
            if not (others and left):
                with suppress(OSError):
                    os.rename(aside, destination)
                raise
            shutil.rmtree(aside, ignore_errors=True)
        else:
            shutil.rmtree(aside, ignore_errors=True)
            break
    return True


def _clean(parent: Path, run_id: str, everything: bool = False) -> None:
    """Remove what dead processes left of this run, except for complete runs and those that can be resumed; with
    `everything`, all."""
    for folder in parent.glob(".*-*"):
        own = hidden(folder)
        if own is None or own.name.removesuffix(FAILED) != run_id or occupied(folder):
            continue
        whole = own.kind == "tmp" and (folder / METRICS).is_file()
        if own.kind == "old":
            _put_back(folder, parent / own.name)
        elif everything or not (whole or resumable(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def _put_back(aside: Path, destination: Path) -> None:
    """Put back a folder that a dead process moved aside, unless the present one is as good; then remove it."""
    if not destination.exists():
        with suppress(OSError):  # another process has put one there
            os.rename(aside, destination)
    elif may_be_ok(aside) and not may_be_ok(destination):
        _replace(aside, destination, may_be_ok)
    shutil.rmtree(aside, ignore_errors=True)
