"""Reads data sets in the format of MNIST: four arrays of bytes, in files that are gzipped for download."""

from __future__ import annotations

import gzip
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.download import Remote, fetch, missing, obtain
from bench.models.data.images import images_source
from bench.models.data.options import DataOptions
from ddp.data import TensorSource

PARTS = ("train", "t10k")


@dataclass(frozen=True)
class IdxFiles:
    """A data set in the format of MNIST: images of 28x28 pixels, 10 classes."""

    name: str
    folder: str
    """torchvision's name of the data set's folder; `<folder>/raw` has the unpacked files."""
    mirrors: Sequence[str]
    """URLs to which the name of a file is appended."""
    digests: dict[str, str]
    """Name of the unpacked file -> MD5 of the gzipped file."""
    mean: float
    std: float

    @property
    def origin(self) -> Origin:
        """Return how the data set is prepared and opened."""
        return Origin(self._describe, self._prepare)

    def raw(self, data_dir: str) -> Path:
        """Return the folder of the files."""
        return Path(data_dir) / self.folder / "raw"

    def _describe(self, data_dir: str, options: DataOptions) -> DataSet:
        return DataSet((1, 28, 28), 10, lambda: self.load(self.raw(data_dir)), (self.std,))

    def _prepare(self, data_dir: str, options: DataOptions) -> None:
        """Download missing files, then read all files to check them."""
        raw, remedy = self.raw(data_dir), "put these files there, unpacked, as torchvision keeps them"
        obtain(self.name, Path(data_dir), raw, self.digests, lambda: self._download(raw), remedy)
        self.load(raw)

    def _download(self, raw: Path) -> None:
        raw.mkdir(parents=True, exist_ok=True)
        for name in missing(raw, self.digests):
            urls = tuple(f"{mirror}{name}.gz" for mirror in self.mirrors)
            packed = fetch(Remote(f"{name}.gz", urls, self.digests[name]), raw)
            unpacked = raw / f"{name}.unpacked"
            with gzip.open(packed) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
            unpacked.replace(raw / name)
            packed.unlink()

    def load(self, raw: Path) -> tuple[TensorSource, TensorSource]:
        """Return (train, eval). Raise ValueError for a missing or damaged file."""
        train, test = (images_source(*_part(raw, part), 255, [self.mean], [self.std]) for part in PARTS)
        return train, test


def _part(raw: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images [n, 28, 28] and labels [n] of one part."""
    files = raw / f"{part}-images-idx3-ubyte", raw / f"{part}-labels-idx1-ubyte"
    images, labels = _read(files[0], 3), _read(files[1], 1)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"damaged file {files[0]}: images of {images.shape[1:]} pixels instead of 28x28; {AGAIN}")
    if len(images) != len(labels):
        raise ValueError(f"damaged file {files[1]}: {len(labels)} labels for {len(images)} images; {AGAIN}")
    if labels.max() > 9:
        wrong = int(np.flatnonzero(labels > 9)[0])
        raise ValueError(f"damaged file {files[1]}: label {labels[wrong]} of image {wrong} is not 0 to 9; {AGAIN}")
    return images, labels


AGAIN = "delete it to have it downloaded again"


def _read(path: Path, dims: int) -> NDArray[np.uint8]:
    """Return the byte array in an IDX file: a magic number, `dims` sizes (big-endian, 4 bytes each), then the data."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    head = np.frombuffer(content[: 4 * (dims + 1)].ljust(4 * (dims + 1), b"\0"), dtype=">u4")
    sizes = [int(size) for size in head[1:]]
    if head[0] != 0x0800 + dims or len(content) != 4 * (dims + 1) + math.prod(sizes) or 0 in sizes:
        raise ValueError(f"damaged file {path} ({len(content)} bytes); {AGAIN}")
    return np.frombuffer(content, dtype=np.uint8, offset=4 * (dims + 1)).reshape(sizes).copy()
