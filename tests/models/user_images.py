"""A user's own images: prepared and read, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.models.data import DataOptions, data_set, prepare

Folders = tuple[Path, Path]


def ready(images: Path, data_dir: Path, **settings: object) -> list[tuple[torch.Tensor, ...]]:
    """Bytes of the images and labels of train and eval."""
    asked = DataOptions(path=str(images), **settings)
    prepare("image_folder", str(data_dir), asked)
    return [source.tensors for source in data_set("image_folder", str(data_dir), asked).load()]


def left(data_dir: Path) -> list[Path]:
    """What is kept in the data folder, hidden or not, beside the lock."""
    return [path for path in data_dir.glob("decoded/*") if path.name != ".decoded.lock"]


def refused(images: Path, data_dir: Path, said: str, **settings: object) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        ready(images, data_dir, **settings)
    assert "\n" not in str(caught.value)
    assert not left(data_dir), "nothing is kept of it"
