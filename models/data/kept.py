"""Decoded images, kept as arrays on disk: made once, whole or not there, and mapped by every rank.

A set of images is known by its files' names, sizes and times of change, so a folder that has changed is decoded anew. Lies
in the data folder, or where that cannot be written, in the user's own part of the temporary folder. Knows no image format.
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
"""Of what is kept: to be raised where it changes."""
FOLDER = "decoded"
ABOUT = "about.json"
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class Place:
    """Where a set of images is kept, or would be."""

    homes: tuple[Path, ...]
    """Folders that it may be in, the best first."""
    key: str

    def find(self) -> Path | None:
        """Return its folder; None if it is not there."""
        return next((home / self.key for home in self.homes if (home / self.key / ABOUT).is_file()), None)

    def make(self, build: Callable[[Path], None]) -> Path:
        """Return its folder, filled by `build` if it is not there: in the first home that can be written.

        One process at a time. Raise ValueError where there is none."""
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
            for leftover in (*home.glob(".*.part"), folder):  # of attempts that were killed
                shutil.rmtree(leftover, ignore_errors=True)
            scratch.mkdir()
            try:
                build(scratch)
                scratch.replace(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return folder


def place(data_dir: str, parts: Sequence[Iterable[tuple[str, int]]], form: object) -> Place:
    """Return the place of the images of `parts`, (file, class) each, decoded to `form`. Raise OSError for a missing file."""
    digest = hashlib.sha256(json.dumps([FORM, form]).encode())
    for index, part in enumerate(parts):
        for path, label in part:
            about = os.stat(path)
            digest.update(os.fsencode(f"{index}\0{label}\0{about.st_size}\0{about.st_mtime_ns}\0{path}\n"))
    return Place((Path(data_dir) / FOLDER, *_own()), digest.hexdigest()[:32])


def _own() -> tuple[Path, ...]:
    """Return the user's part of the temporary folder; none where that is another's, who could put there what he likes."""
    folder = Path(tempfile.gettempdir()) / f"elche-bench-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return ()
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return (folder / FOLDER,) if private else ()


def new(folder: Path, part: str, labels: Sequence[int], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Make the array of the images of a part, uint8 [n, c, h, w], to be filled. Raise OSError where there is no room."""
    np.save(folder / f"{part}-labels.npy", np.asarray(labels, dtype=np.int64))
    path = folder / f"{part}-images.npy"
    images: NDArray[np.uint8] = np.lib.format.open_memmap(path, "w+", np.uint8, (len(labels), *shape))
    with path.open("r+b") as file:  # a mapped file without room behind it would kill the process, not raise
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def conclude(folder: Path, mean: Sequence[float], std: Sequence[float]) -> None:
    """Record that all images are there; `mean` and `std` of each channel, on a scale of 0 to 1."""
    (folder / ABOUT).write_text(json.dumps({"mean": list(mean), "std": list(std)}), encoding="utf-8")


def shape(folder: Path) -> tuple[int, ...]:
    """Return channels, height and width. Raise ValueError for a damaged file, as the others do."""
    return _array(folder / "train-images.npy").shape[1:]


def moments(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (means, standard deviations) of the channels, on a scale of 0 to 1."""
    with _whole(folder / ABOUT) as path:
        about = json.loads(path.read_text(encoding="utf-8"))
        return tuple(map(float, about["mean"])), tuple(map(float, about["std"]))


def load(folder: Path) -> tuple[TensorSource, TensorSource]:
    """Map (train, eval): ranks of one machine share the memory."""
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
    """Blame the file for what goes wrong inside; a fault that names another file stays as it is."""
    try:
        yield path
    except _Damaged:
        raise
    except (OSError, ValueError, TypeError, KeyError, EOFError) as error:
        raise _Damaged(f"damaged file {path}; remove the folder {path.parent}: it is made again") from error


class _Damaged(ValueError):
    """Names the file."""
