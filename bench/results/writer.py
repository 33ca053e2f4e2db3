"""How a run folder comes into place: it is written in a hidden folder beside its place and renamed into it, so that a folder
that is there is whole. Owns the atomicity; knows nothing of what lies in the files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path

from bench.base.usage import reason
from bench.results.lease import Lease, at_work_on, hidden, making, moved, occupied
from bench.results.runfolder import CHECKPOINTS, FAILED, METRICS, may_be_ok, place, reached, resumable, resuming

TRIES = 5
"""So often a folder is renamed into a place that another host takes again and again."""


class NotInPlace(OSError):
    """A run is written, but its folder cannot be put where it belongs. Names the folder that it lies in."""


class Unwritten(OSError):
    """A run ended because something could not be written, or opened. Says what is kept."""


class RunWriter:
    """A run folder in the making: write files under `path`, then `commit` or `discard`.

    Raises ValueError with one line if the folder cannot be made (read-only disk, a file in the way, this process at work in
    it).
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
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _clean(parent, run_id)
            self.path.mkdir()
            self._lease = Lease(self.path)
        except OSError as error:
            raise ValueError(f"cannot write runs to {output}: {reason(error)}") from None

    @property
    def _beside(self) -> Path:
        return self._place.with_name(self._place.name + FAILED)

    def destination(self, status: str) -> Path:
        """Return where the folder goes. An `ok` run replaces what is there; another one never replaces an `ok` one, nor one
        that has a later checkpoint, but goes to `<run_id>.failed` beside it; where a later one is there too, it stays."""
        return next(self._places(status), self.path)

    def _places(self, status: str) -> Iterator[Path]:
        """Yield where the folder may go."""
        return (place for place in (self._place, self._beside) if status == "ok" or not self._outranked(place))

    def _outranked(self, other: Path) -> bool:
        """Return whether this run, which is not `ok`, must not replace another one: that is `ok`, or came further."""
        return may_be_ok(other) or reached(other) > reached(self.path)

    def _put(self, status: str) -> Path:
        """Put the folder where it goes; return where that is."""
        spared = None if status == "ok" else self._outranked
        return next((place for place in self._places(status) if _replace(self.path, place, spared)), self.path)

    def commit(self, status: str) -> Path:
        """Rename into place; the final folder (`destination`). Checkpoints are kept until a run of the cell is `ok` and in
        its place. Raises NotInPlace: what was written stays where it is, under `path`."""
        try:
            destination = self._put(status)
        except OSError as error:
            raise NotInPlace(f"the run lies in {self.path}, which cannot be put into place: {reason(error)}") from error
        finally:
            self._lease.release()
        if status == "ok":
            shutil.rmtree(destination / CHECKPOINTS, ignore_errors=True)
            shutil.rmtree(self._beside, ignore_errors=True)
            with suppress(OSError):  # the run is in place; the next one tidies up
                _clean(self._place.parent, self._place.name, everything=True)
        return destination

    def left(self) -> str:
        """Return what is there of a run that ended here, and how to go on with it."""
        if not resumable(self.path):
            return "nothing is kept, as there is no checkpoint yet"
        last = max((self.path / CHECKPOINTS).glob("[0-9]*"))
        place = self.path if may_be_ok(self._place) else self._place  # of a place with a finished run nothing goes on
        return f"the last checkpoint is {last}; with room again, go on by: {resuming(place)}"

    def discard(self, copied: bool = False) -> None:
        """Remove what was written, unless it can be resumed; then too if its checkpoint is `copied` from elsewhere."""
        self._lease.release()
        if copied or not resumable(self.path):
            shutil.rmtree(self.path, ignore_errors=True)


def _replace(source: Path, destination: Path, spared: Callable[[Path], bool] | None = None) -> bool:
    """Rename a folder over another one, which is moved aside first: `_clean` puts it back if we die in between. Return
    False, with all as it was, if what was there is `spared`.

    What a shared file system shows may be a minute old, so nobody asks it what is there: that is seen by what it does."""
    aside = moved(destination)
    for left in reversed(range(TRIES)):
        with suppress(OSError):
            os.utime(destination)  # the lease of what is aside: without it another host would put that back at once
        with suppress(FileNotFoundError):
            os.rename(destination, aside)
            if spared is not None and spared(aside):
                with suppress(OSError):  # a third host's run is there already: `_clean` knows which is to stay
                    os.rename(aside, destination)
                return False
        try:
            os.rename(source, destination)
        except OSError as error:
            others = error.errno in (
                EEXIST,
                ENOTEMPTY,
            )  # another host's run came in between, or it put back what was aside
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
    """Remove what dead processes left of this run, but for what can be resumed and for whole runs; or these too."""
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
    """Put back a folder that a dead process moved aside, unless what is there now is as good; then remove it."""
    if not destination.exists():
        with suppress(OSError):  # somebody else's is there
            os.rename(aside, destination)
    elif may_be_ok(aside) and not may_be_ok(destination):
        _replace(aside, destination, may_be_ok)
    shutil.rmtree(aside, ignore_errors=True)
