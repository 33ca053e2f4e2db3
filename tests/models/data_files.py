"""Small files in the formats of the data sets."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

IDX_SIZES = {"train": 60, "t10k": 20}


def write_idx(path: Path, array: np.ndarray) -> None:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(struct.pack(">I", 0x0800 + array.ndim) + sizes + array.astype(np.uint8).tobytes())


def write_mnist(raw: Path) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for part, count in IDX_SIZES.items():
        write_idx(raw / f"{part}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)


class Python2(pickle._Pickler):
    """Writes strings of bytes, and names, as Python 2 with an early NumPy did: as in the files of CIFAR."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = value.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or value.__name__}\n".encode())
        self.memoize(value)

    dispatch[bytes] = save_bytes
    dispatch[type(np.empty(0).__reduce__()[0])] = save_global
    dispatch[type] = save_global


def cifar_batch(path: Path, images: np.ndarray, labels: list[int], key: bytes = b"labels") -> None:
    file = io.BytesIO()
    Python2(file, 2).dump({b"data": images, key: labels})
    path.write_bytes(file.getvalue())


def write_cifar(home: Path) -> None:
    """CIFAR-10 of 4 images a file, and CIFAR-100 of 200 and 100."""
    draw = np.random.default_rng(1)
    ten, hundred = home / "cifar-10-batches-py", home / "cifar-100-python"
    for folder in (ten, hundred):
        folder.mkdir(parents=True)
    for index, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        labels = [(10 * index + k) % 10 for k in range(10)]
        cifar_batch(ten / name, draw.integers(0, 256, (10, 3072), dtype=np.uint8), labels)
    for name, count in (("train", 200), ("test", 100)):
        labels = [k % 100 for k in range(count)]
        cifar_batch(hundred / name, draw.integers(0, 256, (count, 3072), dtype=np.uint8), labels, b"fine_labels")


def pack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, folder.name)


def picture(path: Path, value: int | np.ndarray = 0, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    """An image of `size` (width, height) in one colour, or of an array [h, w, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, np.ndarray):
        Image.fromarray(value.astype(np.uint8)).save(path)
    else:
        Image.new(mode, size, value if mode == "L" else (value, 2 * value % 256, 7)).save(path)


def write_images(root: Path, count: int = 10) -> None:
    for index, name in enumerate(("cat", "dog", "eel")):
        for number in range(count):
            picture(root / name / f"{number}.png", 20 * index + number)
