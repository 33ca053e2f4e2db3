"""Decodes image files into arrays. The only module that knows image formats."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.models.data import image_cache
from bench.models.data.download import ProgressMeter
from ddp.process.cores import cores

CHUNK = 256
"""Number of images that a thread decodes in one task."""
Files = Sequence[tuple[str, int]]


def decode(train: Files, test: Files, size: tuple[int, ...] | None, folder: Path) -> None:
    """Decode the images of both parts, (file, class) each, into `folder`, in the format of `image_cache`.

    `size`: channels, height and width to which images are resized; None: RGB, and all images must have the same size. Raise
    ValueError, in one line, for an image that cannot be read or has another size."""
    first = train[0][0]
    shape = size or (3, *reversed(_open(first, "RGB").size))
    parts = {"train": train, "eval": test}
    arrays = [
        (part, image_cache.new(folder, name, [label for _, label in part], shape)) for name, part in parts.items()
    ]
    with ProgressMeter("decoding images", len(train) + len(test), unit="images", scale=1) as meter:
        pool = ThreadPoolExecutor(cores())
        try:
            for part, images in arrays:
                fill = partial(_fill, part, images, first if size is None else None)
                for count in pool.map(fill, range(0, len(part), CHUNK)):
                    meter.add(count)
        finally:
            pool.shutdown(cancel_futures=True)
    image_cache.conclude(folder, *_moments(arrays[0][1]))


def _fill(files: Files, images: NDArray[np.uint8], first: str | None, start: int) -> int:
    """Decode a chunk of `files` into `images` [n, c, h, w], and return how many. If `first` is given, all must have the
    size of that image."""
    channels, height, width = images.shape[1:]
    part = files[start : start + CHUNK]
    for place, (path, _) in enumerate(part, start):
        image = _open(path, "RGB" if channels == 3 else "L")
        if image.size != (width, height):
            if first is not None:
                raise ValueError(
                    f"{path} has {image.size[0]}x{image.size[1]} pixels, and {first} {width}x{height}; make all of one "
                    f"size, or give data.shape=[3,HEIGHT,WIDTH] to bring them to it"
                )
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        images[place] = pixels.transpose(2, 0, 1) if channels == 3 else pixels
    return len(part)


def _open(path: str, mode: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return _of_bytes(image).convert(mode)
    except Exception as error:  # a damaged image may raise any error
        why = " ".join(str(error).split()).removesuffix(f" '{path}'") or type(error).__name__
        raise ValueError(f"cannot read image {path} ({why}); replace it, or remove it") from error


def _of_bytes(image: Image.Image) -> Image.Image:
    """Return `image` with 8 bits per value: of 16-bit values, the upper 8. (Pillow's own conversion turns all values above
    255 into white.)"""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its values are of 32 bits, so what is white is not known; make it one of 8 or 16 bits")
    return image


def _moments(images: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of [n, c, h, w], on a scale of 0 to 1."""
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), CHUNK):
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + CHUNK, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    means = counts @ values / counts.sum(axis=1)
    spreads = np.sqrt(np.maximum(counts @ values**2 / counts.sum(axis=1) - means**2, 0))
    return means.tolist(), np.maximum(spreads, 1 / 255).tolist()  # a channel of one colour must not be divided by 0
