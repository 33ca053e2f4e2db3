"""The data sets: what they hold, and what they say when files are missing or damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

from models import data
from models.data import DATA, data_set

NAMES = {"train": 60, "t10k": 20}


def write_idx(path: Path, array: np.ndarray) -> None:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(struct.pack(">I", 0x0800 + array.ndim) + sizes + array.astype(np.uint8).tobytes())


def write_mnist(raw: Path) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for part, count in NAMES.items():
        write_idx(raw / f"{part}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_mnist(tmp_path / "MNIST" / "raw")
    return tmp_path


def load(name: str, folder: Path) -> tuple[tuple[torch.Tensor, ...], ...]:
    DATA[name].prepare(str(folder))
    return tuple(source.batch(torch.arange(len(source))) for source in DATA[name].load(str(folder)))


@pytest.mark.parametrize("name", DATA)
def test_every_data_set_holds_what_it_says(name: str, folder: Path) -> None:
    for images, labels in load(name, folder):
        assert images.shape == (len(labels), *DATA[name].shape)
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert labels.unique().tolist() == list(range(DATA[name].classes))


def test_digits_split_is_fixed_stratified_disjoint_and_normalised(tmp_path: Path) -> None:
    (train, labels), (test, held_out) = load("digits", tmp_path)
    assert (len(train), len(test)) == (1438, 359)
    shares = held_out.bincount() / (held_out.bincount() + labels.bincount())
    assert shares.min() > 0.195
    assert shares.max() < 0.205
    assert abs(train.mean()) < 0.01
    assert abs(train.std() - 1) < 0.01
    assert held_out[:20].tolist() == [3, 1, 6, 2, 7, 2, 6, 9, 8, 0, 1, 3, 6, 1, 7, 5, 3, 7, 9, 1]
    assert torch.equal(load("digits", tmp_path)[1][0], test)
    seen = {image.numpy().tobytes() for image in train}
    assert not any(image.numpy().tobytes() in seen for image in test)


def test_mnist_reads_idx_files(folder: Path) -> None:
    (train, labels), (test, _) = load("mnist", folder)
    assert (len(train), len(test)) == (60, 20)
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    first = np.random.default_rng(0).integers(0, 256, (60, 28, 28))[0, 0, 0]
    assert train[0, 0, 0, 0].item() == pytest.approx((first / 255 - 0.1307) / 0.3081, rel=1e-5)


def test_mnist_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", refuse)
    with pytest.raises(ValueError, match=r"data set mnist: train-images-idx3-ubyte, .*data.dir") as caught:
        DATA["mnist"].prepare(str(tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "MNIST" / "raw") in message
    assert "no network" in message
    assert list(tmp_path.iterdir()) == [], "nothing is left of the attempt"


def test_mnist_is_downloaded_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = folder / "MNIST" / "raw"
    (raw / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda root, download: write_mnist(Path(root) / "MNIST" / "raw"))
    DATA["mnist"].prepare(str(folder))
    assert sorted(path.name for path in raw.iterdir()) == sorted(data._MNIST)


def test_mnist_present_needs_no_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_download_mnist", lambda raw: pytest.fail("downloaded"))
    DATA["mnist"].prepare(str(folder))


@pytest.mark.parametrize("damage", ["truncated", "empty", "magic", "folder", "not an image", "labels of another set"])
def test_a_damaged_file_is_named(damage: str, folder: Path) -> None:
    path = folder / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
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
        case _:
            path = folder / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
            write_idx(path, np.zeros(3))
    with pytest.raises(ValueError, match=r"t10k-(images-idx3|labels-idx1)-ubyte|t10k-\*"):
        data._load_mnist(str(folder))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"cifar10 is not available yet; choose recipe=quick or data\.name=mnist"):
        data_set("cifar10")
    with pytest.raises(ValueError, match="unknown data set 'digit'; choose one of digits, mnist"):
        data_set("digit")
