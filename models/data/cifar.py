"""Reads data sets in the format of CIFAR: byte arrays, pickled by Python 2, in one archive."""

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
from bench.models.data.download import Remote, fetch, obtain
from bench.models.data.images import images_source
from bench.models.data.options import DataOptions
from ddp.data import TensorSource

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class CifarFiles:
    """A data set in the format of CIFAR, with images of 3x32x32."""

    name: str
    folder: str
    """Folder in the archive, and in the data folder, where torchvision has it too."""
    archive: Remote
    train: Sequence[str]
    test: Sequence[str]
    labels: bytes
    """Key of the labels in a pickled file."""
    classes: int
    mean: Sequence[float]
    std: Sequence[float]

    @property
    def origin(self) -> Origin:
        """Return how the data set is prepared and opened."""
        return Origin(self._describe, self._prepare)

    def _describe(self, data_dir: str, options: DataOptions) -> DataSet:
        return DataSet(SHAPE, self.classes, lambda: self.load(Path(data_dir) / self.folder), tuple(self.std))

    def _prepare(self, data_dir: str, options: DataOptions) -> None:
        """Download and unpack the archive if files are missing, then read all files to check them."""
        home = Path(data_dir)
        remedy = f"put {self.archive.name} into {home}, or what is in it, as torchvision keeps it"
        obtain(self.name, home, home / self.folder, (*self.train, *self.test), lambda: self._download(home), remedy)
        self.load(home / self.folder)

    def _download(self, home: Path) -> None:
        """Unpack the archive into a scratch folder, then move its files into place one by one: a file in place is
        complete."""
        scratch = home / f".{self.name}.unpacked"
        shutil.rmtree(scratch, ignore_errors=True)  # left by an interrupted attempt
        with tarfile.open(fetch(self.archive, home)) as packed:
            packed.extractall(scratch, filter="data")
        (home / self.folder).mkdir(exist_ok=True)
        for path in (scratch / self.folder).iterdir():
            path.replace(home / self.folder / path.name)
        shutil.rmtree(scratch)

    def load(self, folder: Path) -> tuple[TensorSource, TensorSource]:
        """Return (train, eval). Raise ValueError for a missing or damaged file."""
        return self._join(folder, self.train), self._join(folder, self.test)

    def _join(self, folder: Path, names: Sequence[str]) -> TensorSource:
        images, labels = zip(*(self._read(folder / name) for name in names), strict=True)
        return images_source(np.concatenate(images), np.concatenate(labels), 255, self.mean, self.std)

    def _read(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return images [n, 3, 32, 32] and labels [n] of one file."""
        again = f"delete it, and {self.archive.name} if that is beside its folder, to have them downloaded again"
        try:
            with path.open("rb") as file:
                content = _Arrays(file, encoding="bytes").load()
            images, labels = content[b"data"], np.asarray(content[self.labels], dtype=np.int64)
            shaped = np.ascontiguousarray(images, dtype=np.uint8).reshape(len(labels), *SHAPE)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except Exception as error:  # a damaged pickle may raise any error
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"damaged file {path} ({why}); {again}") from error
        wrong = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if len(wrong):
            why = f"label {labels[wrong[0]]} of image {wrong[0]} is not 0 to {self.classes - 1}"
            raise ValueError(f"damaged file {path}: {why}; {again}")
        return shaped, labels.astype(np.uint8)


class _Arrays(pickle.Unpickler):
    """Unpickles NumPy arrays and refuses everything else, which could run code chosen by the file."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module.endswith("core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return lambda code, *_: np.dtype(code)  # NumPy warns about the other arguments that Python 2 wrote
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
