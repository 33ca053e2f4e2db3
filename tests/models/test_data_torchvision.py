"""Held against torchvision, which users know: the same addresses, check sums and places, and the same bytes from a file."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.transforms.v2 import functional

from bench.models.data import DataOptions, cifar10, cifar100, data_set, fashion_mnist, image_folder, mnist, prepare
from bench.models.data.cifar import CifarFiles
from bench.models.data.idx import IdxFiles
from ddp.data import TensorSource
from ddp.data.augment import crop_and_flip
from ddp.data.draws import Draws
from tests.models.data_files import picture, write_cifar, write_images, write_mnist

IDX = [(mnist.FILES, datasets.MNIST), (fashion_mnist.FILES, datasets.FashionMNIST)]
CIFAR = [(cifar10.FILES, datasets.CIFAR10), (cifar100.FILES, datasets.CIFAR100)]


@pytest.fixture(autouse=True)
def as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images stay the bytes that they were in their files."""
    monkeypatch.setattr("bench.models.data.images.AT_ONCE", 0)


def content(sources: Sequence[TensorSource]) -> list[list[Any]]:
    """Images [n, c, h, w], bytes, and labels [n] of (train, eval)."""
    return [[tensor.numpy() for tensor in source.tensors] for source in sources]


def same(ours: list[list[Any]], theirs: list[list[Any]]) -> None:
    for (images, labels), (other, targets) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(images, other)
        np.testing.assert_array_equal(labels, targets)


@pytest.mark.parametrize(("files", "known"), IDX)
def test_files_of_mnist_come_from_where_torchvision_takes_them(files: IdxFiles, known: type[datasets.MNIST]) -> None:
    assert list(files.mirrors) == known.mirrors
    assert {f"{name}.gz": digest for name, digest in files.digests.items()} == dict(known.resources)
    assert files.folder == known.__name__


@pytest.mark.parametrize(("files", "known"), CIFAR)
def test_files_of_cifar_come_from_where_torchvision_takes_them(
    files: CifarFiles, known: type[datasets.CIFAR10]
) -> None:
    assert (files.archive.name, files.archive.urls, files.archive.digest) == (
        known.filename,
        (known.url,),
        known.tgz_md5,
    )
    assert files.folder == known.base_folder
    assert [files.train, files.test] == [[name for name, _ in part] for part in (known.train_list, known.test_list)]


@pytest.mark.parametrize(("files", "known"), IDX)
def test_a_folder_of_mnist_is_read_as_torchvision_reads_it(
    files: IdxFiles, known: type[datasets.MNIST], tmp_path: Path
) -> None:
    write_mnist(files.raw(str(tmp_path)))
    theirs = [known(tmp_path, train=train) for train in (True, False)]
    same(content(data_set(files.name, str(tmp_path)).load()), [[part.data[:, None], part.targets] for part in theirs])


@pytest.mark.parametrize(("files", "known"), CIFAR)
@pytest.mark.filterwarnings("ignore:dtype")  # Python 2 wrote the types of arrays in another way
def test_a_folder_of_cifar_is_read_as_torchvision_reads_it(
    files: CifarFiles, known: type[datasets.CIFAR10], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path)
    folder = tmp_path / files.folder
    (folder / known.meta["filename"]).write_bytes(pickle.dumps({known.meta["key"]: list(range(files.classes))}))

    def sums(names: Sequence[str]) -> list[list[str]]:
        return [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in names]

    monkeypatch.setattr(known, "train_list", sums(files.train))
    monkeypatch.setattr(known, "test_list", sums(files.test))
    monkeypatch.setattr(known, "meta", known.meta | {"md5": sums([known.meta["filename"]])[0][1]})
    theirs = [known(tmp_path, train=train) for train in (True, False)]
    expected = [[part.data.transpose(0, 3, 1, 2), part.targets] for part in theirs]
    same(content(data_set(files.name, str(tmp_path)).load()), expected)


def test_a_folder_of_images_is_what_torchvision_takes_it_for(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write_images(root / "train", count=3)
    write_images(root / "test", count=2)
    picture(root / "train" / "dog" / "deeper" / "a.jpg", np.random.default_rng(0).integers(0, 256, (4, 6, 3)))
    picture(root / "train" / "eel" / "grey.bmp", 77, mode="L")
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    theirs = [datasets.ImageFolder(root / part) for part in ("train", "test")]
    found = image_folder.listing(root, 0)
    assert list(found.classes) == theirs[0].classes
    assert [sorted(part) for part in (found.train, found.eval)] == [sorted(part.samples) for part in theirs]
    options = DataOptions(path=str(root))
    prepare("image_folder", str(tmp_path / "data"), options)
    ours = content(data_set("image_folder", str(tmp_path / "data"), options).load())
    for (images, labels), listed, part in zip(ours, (found.train, found.eval), theirs, strict=True):
        for image, label, (path, _) in zip(images, labels, listed, strict=True):
            np.testing.assert_array_equal(image.transpose(1, 2, 0), np.asarray(part.loader(path)))
            assert label == dict(part.samples)[path]


def test_links_that_lead_in_circles_are_not_followed_as_torchvision_does(tmp_path: Path) -> None:
    """The one place where the same folder holds other images: they would be trained on 41 times."""
    write_images(tmp_path)
    (tmp_path / "cat" / "again").symlink_to(tmp_path)
    found = image_folder.listing(tmp_path, 0)
    assert len(found.train) + len(found.eval) == 30 < len(datasets.ImageFolder(tmp_path))


def test_crops_and_mirrors_are_torchvisions_by_the_streams_of_the_samples() -> None:
    images, padding = torch.randn(16, 3, 8, 8), 3
    ours = crop_and_flip(padding)(images, Draws(5, 2, torch.arange(16)))
    draws = Draws(5, 2, torch.arange(16))
    places, mirrored = draws.integers(0, 2 * padding + 1, 2).tolist(), draws.integers(0, 2, 1).flatten().tolist()
    for image, (down, right), turned, mine in zip(images, places, mirrored, ours, strict=True):
        cut = functional.crop(functional.pad(image, [padding]), down, right, 8, 8)
        assert torch.equal(mine, functional.horizontal_flip(cut) if turned else cut)
    assert 0 < sum(mirrored) < 16
