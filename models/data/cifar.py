"""Data sets in the files of CIFAR: arrays of bytes, pickled by Python 2, in one archive. Knows the format."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.download import Remote, absent, fetch, one_at_a_time
from bench.models.data.images import images_source
from bench.models.data.options import DataOptions
from ddp.data import TensorSource

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class CifarFiles:
    """One such data set: images of 3x32x32."""

    name: str
    folder: str
    """Of the archive's, in the data folder, where torchvision keeps it."""
    archive: Remote
    train: Sequence[str]
    test: Sequence[str]
    labels: bytes
    """Key of the labels in a file."""
    classes: int
    mean: Sequence[float]
    std: Sequence[float]

    @property
    def origin(self) -> Origin:
        """How it is got ready and opened."""
        return Origin(
            lambda folder, _: DataSet(
                SHAPE, self.classes, lambda: self.load(Path(folder) / self.folder), tuple(self.std)
            ),
            self.prepare,
        )

    def prepare(self, data_dir: str, options: DataOptions) -> None:
        """Downloads and unpacks the archive where files are missing, and reads all of it."""
        home = Path(data_dir)
        if self._missing(home):
            try:
                with one_at_a_time(home, self.name):
                    if self._missing(home):
                        self._unpack(fetch(self.archive, home), home)
            except (OSError, ValueError, EOFError, tarfile.TarError) as error:
                raise absent(
                    self.name,
                    f"{', '.join(self._missing(home))} not found in {home / self.folder}",
                    f"put {self.archive.name} into {home}, or what is in it, as torchvision keeps it",
                    error,
                ) from error
        self.load(home / self.folder)

    def _missing(self, home: Path) -> list[str]:
        return [name for name in (*self.train, *self.test) if not (home / self.folder / name).is_file()]

    def _unpack(self, archive: Path, home: Path) -> None:
        """Beside its place, and then moved file by file: what is there is whole."""
        scratch = home / f".{self.name}.unpacked"
        shutil.rmtree(scratch, ignore_errors=True)  # what an interrupted attempt left
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (home / self.folder).mkdir(exist_ok=True)
        for path in (scratch / self.folder).iterdir():
            path.replace(home / self.folder / path.name)
        shutil.rmtree(scratch)

    def load(self, folder: Path) -> tuple[TensorSource, TensorSource]:
        """(train, eval). ValueError for a file that is damaged or not there."""
        train, test = (self._join(folder, names) for names in (self.train, self.test))
        return train, test

    def _join(self, folder: Path, names: Sequence[str]) -> TensorSource:
        images, labels = zip(*(self._read(folder / name) for name in names), strict=True)
        return images_source(np.concatenate(images), np.concatenate(labels), 255, self.mean, self.std)

    def _read(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Images [n, 3, 32, 32] and labels [n] of one file."""
        again = f"delete it, and {self.archive.name} if that is beside its folder, to have them downloaded again"
        try:
            with path.open("rb") as file:
                said = _Arrays(file, encoding="bytes").load()
            images, labels = said[b"data"], np.asarray(said[self.labels], dtype=np.int64)
            shaped = np.ascontiguousarray(images, dtype=np.uint8).reshape(len(labels), *SHAPE)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except Exception as error:  # what a damaged pickle raises is not for us to list
            raise ValueError(
                f"damaged file {path} ({type(error).__name__}: {' '.join(str(error).split())}); {again}"
            ) from error
        wrong = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if len(wrong):
            raise ValueError(
                f"damaged file {path}: label {labels[wrong[0]]} of image {wrong[0]} is not 0 to {self.classes - 1}; {again}"
            )
        return shaped, labels.astype(np.uint8)


class _Arrays(pickle.Unpickler):
    """Reads NumPy arrays, and nothing else that would run code of a file's choice."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module.endswith("core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return lambda code, *_: np.dtype(code)  # NumPy warns of the other arguments as Python 2 wrote them
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
