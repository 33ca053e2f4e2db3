"""`image_folder`: images of the user's own (`data.path`), a folder for each class as torchvision's ImageFolder has them.

If there are sub-folders `train` and `test` (or `val`), they are the two parts; otherwise a fifth of each class, drawn by
`data.seed`, is held out. Images are read as RGB. They must have the same size, or are resized to `data.shape`. They are
decoded once, before the run; ranks map the decoded arrays. Must not know their format (`bench.models.data.image_cache`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.models.data import image_cache
from bench.models.data.dataset import DataSet, Origin
from bench.models.data.decode import decode
from bench.models.data.images import held_out
from bench.models.data.options import DataOptions

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of image files. Other files are ignored, as by torchvision."""
EVAL = ("test", "val")
PARTS = ("train", "training", "validation", "valid", "testing", *EVAL)
"""Names of parts of a data set, in lower case: if all folders have such names, they are not classes."""


@dataclass(frozen=True)
class Listing:
    """The images of a data set, as (file, class) in a fixed order."""

    classes: tuple[str, ...]
    train: tuple[tuple[str, int], ...]
    eval: tuple[tuple[str, int], ...]


def listing(root: Path, seed: int) -> Listing:
    """List the images in `root`. Raise ValueError, in one line, if it has no folders of classes with images."""
    if not root.is_dir():
        raise ValueError(f"data.path={root} is no folder; give one with a folder of images for each class")
    train = root / "train"
    if not (train.is_dir() and _folders(train)):
        parts = _folders(root)
        if "train" in parts and all(name.lower() in PARTS for name in parts):
            raise ValueError(
                f"data.path={root} has {' and '.join(parts)} without folders of classes; put the images of each class into "
                "a folder of its own in each"
            )
        if parts and all(name.lower() in PARTS for name in parts):
            raise ValueError(
                f"data.path={root} has {' and '.join(parts)}, but no train; add one, laid out as they are, or rename them: "
                f"train, and {' or '.join(EVAL)}"
            )
        return _divided(root, seed)
    other = next((root / name for name in EVAL if (root / name).is_dir()), None)
    if other is None:
        raise ValueError(f"data.path={root} has a folder train, but neither test nor val; add one, laid out as train")
    classes, images = _classes(train)
    strange = [other / name for name in _folders(other) if name not in classes]
    if strange:
        raise ValueError(f"{strange[0]}: there is no class of this name in {train}; rename the folder or remove it")
    return Listing(classes, images, _images(other, classes))


def _divided(root: Path, seed: int) -> Listing:
    """Hold out a fifth of each class."""
    classes, images = _classes(root)
    chosen: set[str] = set()
    for index in range(len(classes)):
        members = [path for path, label in images if label == index]
        chosen |= {members[place] for place in held_out(seed, index, len(members))}
    if not chosen:
        raise ValueError(
            f"data.path={root}: too few images to hold a fifth of each class out; add some, or a folder test"
        )
    train, test = (tuple(entry for entry in images if (entry[0] in chosen) is out) for out in (False, True))
    return Listing(classes, train, test)


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith((".", "__")))


def _classes(root: Path) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    classes = tuple(_folders(root))
    if not classes:
        raise ValueError(
            f"data.path: {root} has no folders; put the images of each class into a folder of its own there"
        )
    images = _images(root, classes)
    for index in set(range(len(classes))) - {label for _, label in images}:
        empty = f"{root / classes[index]} has no images ({', '.join(SUFFIXES)})"
        raise ValueError(f"data.path: {empty}; add some, or remove the folder")
    return classes, images


def _images(root: Path, classes: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    folders = [(str(root / name), label) for label, name in enumerate(classes) if (root / name).is_dir()]
    images = tuple((path, label) for folder, label in folders for path in _walk(folder))
    if not images:
        raise ValueError(f"data.path: {root} has no images ({', '.join(SUFFIXES)}) in folders of its classes")
    return images


def _walk(folder: str) -> Iterator[str]:
    """Yield the images in a folder and its sub-folders, in order. Links to folders are not followed, because they can form
    a cycle."""
    with os.scandir(folder) as entries:
        ordered = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.name.lower().endswith(SUFFIXES):
            if not entry.is_file():  # opening a pipe would block for ever
                raise ValueError(f"cannot read image {entry.path} (it is no file, or a link to none); remove it")
            yield entry.path


def _open(data_dir: str, options: DataOptions) -> tuple[Listing, image_cache.Place]:
    if options.path is None:
        raise ValueError("data set image_folder needs data.path=FOLDER, which has a folder of images for each class")
    if options.shape is not None and options.shape[0] not in (1, 3):
        raise ValueError(f"data.shape: {options.shape[0]} channels; images of a folder have 3 (RGB) or 1 (grey)")
    root = Path(os.path.realpath(options.location))  # Path.resolve raises for a cycle of links
    try:
        images = listing(root, options.seed or 0)
        return images, image_cache.place(data_dir, (images.train, images.eval), options.shape)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    images, place = _open(data_dir, options)
    folder = place.find() or place.make(lambda folder: decode(images.train, images.eval, options.shape, folder))
    return DataSet(
        image_cache.shape(folder), len(images.classes), lambda: image_cache.load(folder), image_cache.moments(folder)[1]
    )


ORIGIN = Origin(_describe)
