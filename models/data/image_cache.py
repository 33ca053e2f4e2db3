"""Stores decoded images as arrays on disk. They are created once, are complete or absent, and are mapped by every rank.

The key of a set of images depends on its files' names, sizes and modification times, so a changed folder is decoded again.
The arrays are in the data folder or, if that is not writable, in the user's part of the temporary folder. Knows no image
format.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.models.data.download import one_at_a_time
from bench.models.data.images import images_source
from ddp.data import TensorSource

FORM = 2
"""Version of the format; increase it when the format changes."""
FOLDER = "decoded"
ABOUT = "about.json"
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class Place:
    """The place of a set of decoded images on disk, whether or not it exists."""

    homes: tuple[Path, ...]
    """Folders that may contain it, the preferred one first."""
    key: str

    def find(self) -> Path | None:
        """Return its folder; None if it does not exist."""
        return next((home / self.key for home in self.homes if (home / self.key / ABOUT).is_file()), None)

    def make(self, build: Callable[[Path], None]) -> Path:
        """Return its folder. If it does not exist, `build` fills it in the first writable home, in one process at a time.
        Raise ValueError if no home is writable."""
        problems = []
        for home in self.homes:
            try:
                return self._make(home, build)
            except OSError as error:
                if error.errno not in UNWRITABLE:
                    raise
                problems.append(f"{home}: {error.strerror}")
        raise ValueError(f"no place to keep decoded images ({'; '.join(problems)}); set data.dir to a folder with room")

    def _make(self, home: Path, build: Callable[[Path], None]) -> Path:
        folder, scratch = home / self.key, home / f".{self.key}.part"
        with one_at_a_time(home, FOLDER):
            if (finished := self.find()) is not None:  # another process was faster
                return finished
            for leftover in (*home.glob(".*.part"), folder):  # left by killed attempts
                shutil.rmtree(leftover, ignore_errors=True)
            scratch.mkdir()
            try:
                build(scratch)
                scratch.replace(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return folder


def place(data_dir: str, parts: Sequence[Iterable[tuple[str, int]]], form: object) -> Place:
    """Return the place for the images of `parts`, (file, class) each, decoded to `form`. Raise OSError for a missing
    file."""
    digest = hashlib.sha256(json.dumps([FORM, form]).encode())
    for index, part in enumerate(parts):
        for path, label in part:
            about = os.stat(path)
            digest.update(os.fsencode(f"{index}\0{label}\0{about.st_size}\0{about.st_mtime_ns}\0{path}\n"))
    return Place((Path(data_dir) / FOLDER, *_own()), digest.hexdigest()[:32])


def _own() -> tuple[Path, ...]:
    """Return the user's part of the temporary folder; none if that folder belongs to, or is writable by, another user."""
    folder = Path(tempfile.gettempdir()) / f"elche-bench-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return ()
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return (folder / FOLDER,) if private else ()


def new(folder: Path, part: str, labels: Sequence[int], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Create the array for the images of a part, uint8 [n, c, h, w]. Raise OSError if the disk has too little space."""
    np.save(folder / f"{part}-labels.npy", np.asarray(labels, dtype=np.int64))
    path = folder / f"{part}-images.npy"
    images: NDArray[np.uint8] = np.lib.format.open_memmap(path, "w+", np.uint8, (len(labels), *shape))
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open(
            "r+b"
        ) as file:  # reserve the space: writing to a mapped file on a full disk would kill the process
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def conclude(folder: Path, mean: Sequence[float], std: Sequence[float]) -> None:
    """Mark the images as complete. `mean` and `std` are by channel, in units of pixels in [0, 1]."""
    (folder / ABOUT).write_text(json.dumps({"mean": list(mean), "std": list(std)}), encoding="utf-8")


def shape(folder: Path) -> tuple[int, ...]:
    """Return (channels, height, width). Raise ValueError for a damaged file, like the other readers."""
    return _array(folder / "train-images.npy").shape[1:]


def moments(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (means, standard deviations) of the channels, in units of pixels in [0, 1]."""
    with _whole(folder / ABOUT) as path:
        about = json.loads(path.read_text(encoding="utf-8"))
        return tuple(map(float, about["mean"])), tuple(map(float, about["std"]))


def load(folder: Path) -> tuple[TensorSource, TensorSource]:
    """Map (train, eval). Ranks of one host share this memory."""
    mean, std = moments(folder)

    def part(name: str) -> TensorSource:
        labels = folder / f"{name}-labels.npy"
        with _whole(labels):
            return images_source(_array(folder / f"{name}-images.npy"), _array(labels), 255, mean, std)

    return part("train"), part("eval")


def _array(path: Path) -> NDArray[Any]:
    with _whole(path):
        array: NDArray[Any] = np.load(path, mmap_mode="c")
        return array


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Report an error in this block as damage of `path`, unless it names another damaged file already."""
    try:
        yield path
    except _Damaged:
        raise
    except (OSError, ValueError, TypeError, KeyError, EOFError) as error:
        raise _Damaged(f"damaged file {path}; remove the folder {path.parent}: it is made again") from error


class _Damaged(ValueError):
    """Raised for a damaged file, which it names."""
