"""The data sets: what they hold, and what they say when files are missing or damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

from models.data import DATA, DataOptions, data_set, mnist, prepare

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


def load(name: str, folder: Path, **options: object) -> tuple[tuple[torch.Tensor, ...], ...]:
    asked = DataOptions(**options)
    prepare(name, str(folder), asked)
    return tuple(source.batch(torch.arange(len(source))) for source in data_set(name, str(folder), asked).load())


@pytest.mark.parametrize("name", DATA)
def test_every_data_set_holds_what_it_says(name: str, folder: Path) -> None:
    about = data_set(name, str(folder))
    for inputs, targets in load(name, folder):
        assert inputs.shape == (len(targets), *about.shape)
        assert targets.dtype == torch.int64
        assert 0 <= targets.min() <= targets.max() < about.classes
        if about.is_text:
            assert targets.shape == inputs.shape
            assert inputs.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
        else:
            assert targets.shape == (len(inputs),)
            assert inputs.dtype == torch.float32
            assert targets.unique().tolist() == list(range(about.classes))


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
        prepare("mnist", str(tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "MNIST" / "raw") in message
    assert "no network" in message
    assert list(tmp_path.iterdir()) == [], "nothing is left of the attempt"


def test_mnist_is_downloaded_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = folder / "MNIST" / "raw"
    (raw / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda root, download: write_mnist(Path(root) / "MNIST" / "raw"))
    prepare("mnist", str(folder))
    assert sorted(path.name for path in raw.iterdir()) == sorted(mnist._MNIST)


def test_mnist_present_needs_no_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "_download_mnist", lambda raw: pytest.fail("downloaded"))
    prepare("mnist", str(folder))


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
        mnist._load(str(folder))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown data set 'digit'; did you mean 'digits'"):
        data_set("digit")


def test_settings_that_a_data_set_does_not_take() -> None:
    with pytest.raises(ValueError, match=r"data\.seq_len means nothing to data set digits; .*pydoc"):
        data_set("digits", options=DataOptions(seq_len=3))


def test_the_bundled_text_has_one_size_and_ends_with_what_is_evaluated() -> None:
    from models.data.pydoc import VOCABULARY, text

    assert len(text()) == 360_000
    (train, _), (test, _) = load("pydoc", Path(), seq_len=100)
    assert (len(train), len(test)) == (3239, 359)
    assert data_set("pydoc", options=DataOptions(seq_len=100)).shape == (100,)
    assert "".join(VOCABULARY[token] for token in train[7]) == text()[700:800]
    assert "".join(VOCABULARY[token] for token in test[0]) == text()[324_000:324_100]
    seen = {bytes(piece.tolist()) for piece in train}
    assert not any(bytes(piece.tolist()) in seen for piece in test)


def test_a_text_shorter_than_its_pieces() -> None:
    with pytest.raises(ValueError, match=r"360000 characters are too few .* data\.seq_len=35999 or less"):
        load("pydoc", Path(), seq_len=36_000)
    assert len(load("pydoc", Path(), seq_len=35_999)[1][0]) == 1
