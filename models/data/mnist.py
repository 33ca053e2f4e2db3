"""`mnist`: 70000 handwritten digits of 28x28 pixels (LeCun et al. 1998), downloaded by torchvision; 10000 are test."""

from __future__ import annotations

import math
import socket
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.data.dataset import DataSet, Origin
from models.data.images import Pixels, pixels
from models.data.options import DataOptions

_MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CONNECT_S = 20.0
STD = (0.3081,)


def _prepare(data_dir: str, options: DataOptions) -> None:
    raw = Path(data_dir) / "MNIST" / "raw"
    missing = [name for name in _MNIST if not (raw / name).is_file()]
    if missing:
        try:
            _download_mnist(raw)
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise ValueError(
                f"data set mnist: {', '.join(missing)} not found in {raw} and the download failed ({reason}); "
                f"put these files there (unpacked, as torchvision keeps them), set data.dir, or choose data.name=digits"
            ) from error
    for part in ("train", "t10k"):
        _read_mnist(raw, part)


def _download_mnist(raw: Path) -> None:
    """Fetches all files beside `raw` and moves the whole ones in: an interrupted download leaves nothing half there."""
    from torchvision.datasets import MNIST

    home = raw.parent.parent
    home.mkdir(parents=True, exist_ok=True)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_CONNECT_S)  # torchvision sets none: a network that swallows packets would hang us.
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix="download-") as folder:
            MNIST(folder, download=True)
            raw.mkdir(parents=True, exist_ok=True)
            for name in _MNIST:
                (Path(folder) / "MNIST" / "raw" / name).replace(raw / name)
    finally:
        socket.setdefaulttimeout(timeout)


def _load(data_dir: str) -> tuple[Pixels, Pixels]:
    raw = Path(data_dir) / "MNIST" / "raw"
    train, test = (pixels(*_read_mnist(raw, part), 255, [0.1307], STD) for part in ("train", "t10k"))
    return train, test


def _read_mnist(raw: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = _read_idx(raw / f"{part}-images-idx3-ubyte", 3), _read_idx(raw / f"{part}-labels-idx1-ubyte", 1)
    if images.shape[1:] != (28, 28) or len(images) != len(labels) or labels.max(initial=0) > 9:
        raise ValueError(
            f"damaged files {raw}/{part}-*: images {list(images.shape)} and labels {list(labels.shape)} do not belong "
            "together; delete them to have them downloaded again"
        )
    return images, labels


def _read_idx(path: Path, dims: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes: a magic number, `dims` sizes (big-endian, 4 bytes each), the data."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    head = np.frombuffer(content[: 4 * (dims + 1)].ljust(4 * (dims + 1), b"\0"), dtype=">u4")
    sizes = [int(size) for size in head[1:]]
    if head[0] != 0x0800 + dims or len(content) != 4 * (dims + 1) + math.prod(sizes) or 0 in sizes:
        raise ValueError(f"damaged file {path} ({len(content)} bytes); delete it to have it downloaded again")
    return np.frombuffer(content, dtype=np.uint8, offset=4 * (dims + 1)).reshape(sizes).copy()


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    return DataSet((1, 28, 28), 10, lambda: _load(data_dir), STD)


ORIGIN = Origin(_describe, _prepare)
