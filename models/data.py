"""The data sets, each with its origin: how to get it ready once, and how to load it in a rank.

Owns files and normalisation; knows nothing of models, recipes or ranks.
"""

from __future__ import annotations

import math
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ddp.data import TensorSource, order
from ddp.runtime.task import Source


@dataclass(frozen=True)
class DataSet:
    """One labelled image data set."""

    summary: str
    """What it is and where it comes from, in one line."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    classes: int
    prepare: Callable[[str], None]
    """(data folder): makes the files ready, downloading if need be. The parent calls it once, before ranks start.

    ValueError, in one line, where that is impossible or a file is damaged.
    """
    load: Callable[[str], tuple[Source, Source]]
    """(data folder) -> (train, eval): float32 normalised images [n, c, h, w] and int64 labels [n]. Never downloads."""


def data_set(name: str) -> DataSet:
    """The data set `name`. ValueError for one that is not (or not yet) there."""
    if name in DATA:
        return DATA[name]
    if name == "cifar10":
        raise ValueError("data set cifar10 is not available yet; choose recipe=quick or data.name=mnist")
    raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(DATA)}")


def _source(images: NDArray[np.uint8], labels: NDArray[np.uint8], top: float, mean: float, std: float) -> TensorSource:
    """Images [n, h, w] with values 0 to `top`, scaled to 0 to 1 and normalised by `mean` and `std` of that scale."""
    pixels = torch.from_numpy(images).to(torch.float32).div_(top).sub_(mean).div_(std)
    return TensorSource(pixels.unsqueeze(1), torch.from_numpy(labels).to(torch.int64))


# --- digits -----------------------------------------------------------------------------------------------------------


def _prepare_digits(data_dir: str) -> None:
    """Nothing to do: scikit-learn brings the file."""


def _load_digits(data_dir: str) -> tuple[Source, Source]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    held_out = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        # A fifth of each digit, drawn with fixed seeds: the split is part of the data, not of a run.
        members = np.flatnonzero(labels == digit)
        held_out[members[order(0, digit, len(members))[: round(len(members) / 5)].numpy()]] = True
    train, test = ((images[chosen], labels[chosen]) for chosen in (~held_out, held_out))
    return _source(*train, top=16, mean=0.3053, std=0.3760), _source(*test, top=16, mean=0.3053, std=0.3760)


# --- mnist ------------------------------------------------------------------------------------------------------------

_MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CONNECT_S = 20.0


def _prepare_mnist(data_dir: str) -> None:
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


def _load_mnist(data_dir: str) -> tuple[Source, Source]:
    raw = Path(data_dir) / "MNIST" / "raw"
    train, test = (_source(*_read_mnist(raw, part), top=255, mean=0.1307, std=0.3081) for part in ("train", "t10k"))
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


DATA: dict[str, DataSet] = {
    "digits": DataSet(
        summary="1797 real handwritten digits, 8x8 pixels (UCI Optdigits), bundled with scikit-learn; 359 are test",
        shape=(1, 8, 8),
        classes=10,
        prepare=_prepare_digits,
        load=_load_digits,
    ),
    "mnist": DataSet(
        summary="70000 handwritten digits of 28x28 pixels (LeCun et al. 1998), downloaded by torchvision; 10000 are test",
        shape=(1, 28, 28),
        classes=10,
        prepare=_prepare_mnist,
        load=_load_mnist,
    ),
}
"""Name -> data set."""
