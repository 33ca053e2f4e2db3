"""The data sets: what each holds, what each takes, and the same bits wherever a batch is made."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.models.data import DATA, DataOptions, data_set, noisy_digits, prepare, shakespeare, title
from bench.models.data.digits import TOP, Labelled, read
from bench.models.data.images import Pixels, images_source
from ddp.data import TensorSource
from tests.models.data_files import write_cifar, write_images, write_mnist

PLAYS = "".join(shakespeare.VOCABULARY) * 40
SETTINGS: dict[str, dict[str, object]] = {
    "image_folder": {"path": "images"},
    "shakespeare": {"seq_len": 16},
    "synthetic": {"samples": 60, "classes": 4, "shape": (2, 5, 3)},
    "text_file": {"path": "text.txt", "seq_len": 16},
}

MADE = {
    "noisy_digits": "19864451015b192d208cdce5f912243a07aae7ac5ed72e09119db5e59f4083a2",
    "toy_language": "f3e1e807228f09b35f125595be01bd157e13c65ed460e9a7f926390bc95c1ac8",
}
"""Digests of all samples of data that is made here, to train with and of the test."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("data")
    for name in ("MNIST", "FashionMNIST"):
        write_mnist(home / name / "raw")
    write_cifar(home)
    write_images(home / "images")
    (home / "shakespeare").mkdir()
    (home / "shakespeare" / "input.txt").write_text(PLAYS)
    (home / "text.txt").write_text("How much wood would a woodchuck chuck?\n" * 30)
    return home


def load(name: str, folder: Path, **settings: object) -> tuple[tuple[torch.Tensor, ...], ...]:
    return tuple(
        source.batch(torch.arange(len(source)))
        for source in data_set(name, str(folder), DataOptions(**settings)).load()
    )


@pytest.mark.parametrize("name", DATA)
def test_every_data_set_holds_what_it_says(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(shakespeare, "is_whole", lambda path, digest: True)
    asked = DataOptions(**SETTINGS.get(name, {}))
    prepare(name, str(folder), asked)
    about = data_set(name, str(folder), asked)
    for source in about.load():
        inputs, targets = source.batch(torch.arange(len(source)))
        assert inputs.shape == (len(source), *about.shape)
        assert targets.dtype == torch.int64
        assert 0 <= targets.min() <= targets.max() < about.classes
        if about.is_text:
            assert targets.shape == inputs.shape
            assert inputs.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            assert torch.equal(inputs[1:, 0], targets[:-1, -1]), "pieces follow one another"
        else:
            assert targets.shape == (len(inputs),)
            assert inputs.dtype == torch.float32
            assert targets.unique().tolist() == list(range(about.classes))
        again = source.to(torch.device("cpu")).batch(torch.tensor([len(source) - 1]))
        assert torch.equal(again[0][0], inputs[-1])
        assert torch.equal(again[1][0], targets[-1])
    repeated = about.load()[1]
    assert torch.equal(repeated.batch(torch.arange(len(repeated)))[0], inputs)


def test_naming_data_sets_imports_no_torch() -> None:
    code = "import sys; from bench.models.data import DATA, check, title; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


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


def test_pixels_are_kept_as_bytes_and_batches_are_those_of_normalised_floats() -> None:
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (9, 3, 4, 5), dtype=np.uint8))
    mean, std = [0.1307, 0.5, 0.2], [0.3081, 0.21, 0.7]
    source = Pixels(images, torch.arange(9), 255, mean, std)
    few = images_source(images.numpy(), np.arange(9), 255, mean, std)
    assert type(few) is TensorSource
    at_once = images.to(torch.float32).div_(255)
    for channel in range(3):
        at_once[:, channel].sub_(mean[channel]).div_(std[channel])
    chosen = torch.tensor([3, 0, 8, 3])
    assert torch.equal(source.batch(chosen)[0], at_once[chosen])
    assert torch.equal(source.to(torch.device("cpu")).batch(chosen)[0], at_once[chosen])
    assert torch.equal(few.batch(chosen)[0], at_once[chosen])
    assert source.tensors[0].dtype == torch.uint8
    assert torch.equal(source.tensors[0], images), "a batch leaves the data as it was"


def test_synthetic_is_the_same_everywhere_and_can_be_learned() -> None:
    (train, labels), (test, _) = load("synthetic", Path(), samples=200, classes=4, shape=(1, 4, 4))
    assert (train.shape, len(test)) == ((200, 1, 4, 4), 40)
    assert ((train[0, 0, 0] * math.sqrt(10 / 12) / 4 + 0.5) * 255).round().tolist() == [220, 144, 15, 147]
    assert not torch.equal(train[:40], test)
    assert torch.equal(load("synthetic", Path(), samples=200, classes=4, shape=(1, 4, 4))[0][0], train)
    assert not torch.equal(load("synthetic", Path(), samples=200, classes=4, shape=(1, 4, 4), seed=1)[0][0], train)
    assert abs(train.mean()) < 0.25
    assert 0.75 < train.std() < 1.25
    centres = torch.stack([train[labels == label].mean(0) for label in range(4)])
    nearest = (test[:, None] - centres).square().sum((2, 3, 4)).argmin(1)
    assert 0.5 < (nearest == torch.arange(40) % 4).float().mean() <= 1


def test_synthetic_that_fits_no_memory_is_refused() -> None:
    asked = DataOptions(samples=2**40, classes=2**40, shape=(2**40, 2**40, 2**40))
    with pytest.raises(ValueError, match="GiB are free; make it smaller"):
        prepare("synthetic", "", asked)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        data_set("cifar")
    with pytest.raises(ValueError, match="unknown data set 'digit'; did you mean 'digits'"):
        prepare("digit", "data")


def test_settings_that_a_data_set_does_not_take() -> None:
    with pytest.raises(ValueError, match=r"data\.seq_len means nothing to data set digits; .*pydoc"):
        data_set("digits", options=DataOptions(seq_len=3))


@pytest.mark.parametrize(
    "settings",
    [
        {"path": " "},
        {"path": "a\0b"},
        {"seq_len": 0},
        {"seq_len": -5},
        {"seq_len": 2**64},
        {"samples": 0},
        {"samples": -1},
        {"classes": 1},
        {"seed": -1},
        {"seed": 2**64},
        {"shape": ()},
        {"shape": (3, 32)},
        {"shape": (3, 0, 32)},
        {"shape": (3, 32, 2**62)},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^data\.\w+=") as caught:
        DataOptions(**settings)
    assert "\n" not in str(caught.value)


def test_settings_of_a_user_go_before_those_of_a_recipe() -> None:
    said, own = DataOptions(seq_len=8, path="x"), DataOptions(seq_len=64, samples=9)
    assert said.over(own) == DataOptions(seq_len=8, path="x", samples=9)
    assert own.only(("seq_len",)) == DataOptions(seq_len=64)
    assert DataOptions(seed=0).given == {"seed": 0}


def test_a_data_set_is_called_by_its_settings() -> None:
    assert title("digits", DataOptions()) == "digits"
    assert title("synthetic", DataOptions(samples=100, shape=(3, 8, 8))) == "synthetic (samples 100, shape 3x8x8)"


def test_noisy_digits_are_copies_of_digits_of_one_side_each() -> None:
    (train, labels), (test, marked) = load("noisy_digits", Path())
    assert (len(train), len(test)) == (20 * 1078, 8 * 719)
    assert torch.equal(labels.view(20, -1), labels[:1078].expand(20, -1))
    assert torch.equal(marked.view(8, -1), marked[:719].expand(8, -1))
    assert abs(train.mean()) < 0.01
    assert abs(train.std() - 1) < 0.01
    sides = [{image.numpy().tobytes() for image in part} for part in (train, test)]
    assert [len(side) for side in sides] == [len(train), len(test)], "no image is there twice"
    assert not sides[0] & sides[1]
    sources = [{image.tobytes() for image in part.images} for part in read(2)]
    assert [len(side) for side in sources] == [1078, 719]
    assert not sources[0] & sources[1]
    few, _ = load("noisy_digits", Path(), samples=1500)[0]
    assert torch.equal(few, train[:1500])
    with pytest.raises(ValueError, match=r"data\.samples=21561: data set noisy_digits has 21560"):
        load("noisy_digits", Path(), samples=21561)


def test_a_noisy_digit_is_a_moved_digit_and_noise_that_averages_out() -> None:
    train, _ = read(2)
    noisy = noisy_digits.copies(Labelled(train.images[5:6], train.labels[5:6]), 400, 0)
    assert noisy.images.max() <= TOP
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(train.images[5], 1), (8, 8)).reshape(-1, 8, 8)
    distances = np.abs(noisy.images.astype(int)[:, None] - windows.astype(int)).max(axis=(2, 3))
    assert (distances.min(axis=1) <= 4).all(), "each is a window of the digit, with noise of at most 4"
    assert len(set(distances.argmin(axis=1))) == 9, "all nine moves are there"


def test_the_content_of_made_data_is_the_same_everywhere() -> None:
    for name, digest in MADE.items():
        content = hashlib.sha256()
        for source in data_set(name).load():
            for tensor in source.batch(torch.arange(len(source))):
                content.update(tensor.numpy().tobytes())
        assert content.hexdigest() == digest, name


def test_shifted_digits_are_the_digits_and_each_moved_by_a_pixel() -> None:
    (plain, labels), (test, _) = load("digits", Path())
    (train, marked), (same, _) = load("shifted_digits", Path())
    assert torch.equal(test, same)
    assert len(train) == 5 * len(plain) == 7190
    original, up, down, left, right = train.chunk(5)
    assert torch.equal(original, plain)
    assert all(torch.equal(part, labels) for part in marked.chunk(5))
    assert torch.equal(up[..., :-1, :], plain[..., 1:, :])
    assert torch.equal(down[..., 1:, :], plain[..., :-1, :])
    assert torch.equal(left[..., :-1], plain[..., 1:])
    assert torch.equal(right[..., 1:], plain[..., :-1])
    background = plain.min()
    assert all((edge == background).all() for edge in (up[..., -1, :], down[..., 0, :], left[..., -1], right[..., 0]))


def test_every_data_set_of_ours_can_be_made_smaller() -> None:
    assert all("samples" in entry.options for entry in DATA.values())
    (train, labels), test = load("digits", Path())
    (few, marked), same = load("digits", Path(), samples=7)
    assert torch.equal(few, train[:7])
    assert torch.equal(marked, labels[:7])
    assert torch.equal(same[0], test[0])
    with pytest.raises(ValueError, match=r"data\.samples=9999: data set digits has 1438 samples to train on"):
        prepare("digits", "", DataOptions(samples=9999))


def test_bytes_stay_bytes_in_a_part_of_the_images() -> None:
    images = torch.arange(5 * 3 * 2 * 2, dtype=torch.uint8).view(5, 3, 2, 2)
    source = Pixels(images, torch.arange(5), 255, [0.1] * 3, [0.3] * 3)
    part = source.first(3, seed=1)
    chosen = part.batch(torch.arange(3))[1]
    assert isinstance(part, Pixels)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert torch.equal(part.batch(torch.arange(3))[0], source.batch(chosen)[0])
