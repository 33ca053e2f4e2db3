"""Files of MNIST and CIFAR: read for what they are, and named when they are damaged."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.models.data import data_set, mnist, prepare
from tests.models.data_files import cifar_batch, write_cifar, write_idx, write_mnist


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_mnist(tmp_path / "MNIST" / "raw")
    write_cifar(tmp_path)
    return tmp_path


def test_mnist_reads_idx_files(folder: Path) -> None:
    train, test = data_set("mnist", str(folder)).load()
    assert (len(train), len(test)) == (60, 20)
    images, labels = train.batch(torch.arange(60))
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    first = np.random.default_rng(0).integers(0, 256, (60, 28, 28))[0, 0, 0]
    assert images[0, 0, 0, 0].item() == pytest.approx((first / 255 - 0.1307) / 0.3081, rel=1e-5)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("truncated", "t10k-images-idx3-ubyte"),
        ("empty", "t10k-images-idx3-ubyte"),
        ("magic", "t10k-images-idx3-ubyte"),
        ("folder", "t10k-images-idx3-ubyte"),
        ("not an image", "t10k-images-idx3-ubyte"),
        ("labels of another set", "t10k-labels-idx1-ubyte"),
        ("label out of range", "t10k-labels-idx1-ubyte"),
    ],
)
def test_a_damaged_file_of_mnist_is_named(damage: str, name: str, folder: Path) -> None:
    path = folder / "MNIST" / "raw" / name
    match damage:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        case "empty":
            path.write_bytes(b"")
        case "magic":
            path.write_bytes(b"\x1f" + path.read_bytes()[1:])
        case "folder":
            path.unlink()
            path.symlink_to(folder)
        case "not an image":
            write_idx(path, np.zeros((20, 5, 5)))
        case "labels of another set":
            write_idx(path, np.zeros(3))
        case _:
            write_idx(path, np.array([*range(10), *range(9), 10]))
    if damage == "folder":
        with pytest.raises(ValueError, match=f"cannot read .*{name}"):
            mnist.FILES.load(path.parent)
        return
    with pytest.raises(ValueError, match=f"damaged file .*{name}.*delete it to have it downloaded again") as caught:
        prepare("mnist", str(folder))
    assert "\n" not in str(caught.value)
    assert damage != "label out of range" or "label 10 of image 19 is not 0 to 9" in str(caught.value)


def test_cifar_joins_its_files_in_order(folder: Path) -> None:
    prepare("cifar10", str(folder))
    train, test = data_set("cifar10", str(folder)).load()
    assert (len(train), len(test)) == (50, 10)
    images, labels = train.batch(torch.arange(50))
    assert labels.tolist() == list(range(10)) * 5
    raw = np.random.default_rng(1).integers(0, 256, (10, 3072), dtype=np.uint8)[3, 1024]  # green, first row
    assert images[3, 1, 0, 0].item() == pytest.approx((raw / 255 - 0.4822) / 0.2435, rel=1e-5)
    assert data_set("cifar100", str(folder)).load()[0].batch(torch.arange(101))[1].tolist() == [*range(100), 0]


@pytest.mark.parametrize("damage", ["truncated", "empty", "another file", "short row", "labels", "label out of range"])
def test_a_damaged_file_of_cifar_is_named(damage: str, folder: Path) -> None:
    path = folder / "cifar-10-batches-py" / "data_batch_3"
    images = np.zeros((4, 3072), dtype=np.uint8)
    match damage:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        case "empty":
            path.write_bytes(b"")
        case "another file":
            path.write_bytes(b"<html>not found</html>")
        case "short row":
            cifar_batch(path, images[:, :-1], [0, 1, 2, 3])
        case "labels":
            cifar_batch(path, images, [0, 1, 2])
        case _:
            cifar_batch(path, images, [0, 1, 10, 3])
    with pytest.raises(
        ValueError, match=r"damaged file .*data_batch_3.*delete it, and cifar-10-python\.tar\.gz"
    ) as caught:
        prepare("cifar10", str(folder))
    assert "\n" not in str(caught.value)
    assert damage != "label out of range" or "label 10 of image 2 is not 0 to 9" in str(caught.value)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("owned",)


def test_a_file_of_cifar_runs_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"test_batch .*mkdir has no place in it"):
        prepare("cifar10", str(folder))
    assert not Path("owned").exists()
