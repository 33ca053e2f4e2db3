"""A user's own images: what is found, held out, decoded once and kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.models.data import DataOptions, data_set, decode, image_cache, prepare
from tests.models.data_files import picture
from tests.models.user_images import Folders, left, ready, refused


def colours(part: tuple[torch.Tensor, ...]) -> list[int]:
    """The number that each image was painted with."""
    return part[0][:, 0, 0, 0].tolist()


def test_a_fifth_of_each_class_is_held_out_by_a_seed(folders: Folders) -> None:
    (train, labels), (test, held_out) = ready(*folders)
    assert (train.shape, train.dtype, test.shape) == ((24, 3, 4, 6), torch.uint8, (6, 3, 4, 6))
    assert labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert held_out.tolist() == [0, 0, 1, 1, 2, 2]
    everything = [20 * label + number for label in range(3) for number in range(10)]
    assert sorted(colours((train,)) + colours((test,))) == everything
    assert colours(ready(*folders)[1]) == colours((test,))
    assert colours(ready(*folders, seed=1)[1]) != colours((test,))
    about = data_set("image_folder", str(folders[1]), DataOptions(path=str(folders[0])))
    assert (about.shape, about.classes) == ((3, 4, 6), 3)


@pytest.mark.parametrize("other", ["test", "val"])
def test_a_split_that_is_there_is_taken(other: str, folders: Folders, tmp_path: Path) -> None:
    root = tmp_path / "split"
    folders[0].rename(root / "train" if root.mkdir() is None else root)
    picture(root / other / "dog" / "a.JPG", 200)
    picture(root / other / "dog" / "deep" / "er" / "b.png", 100)
    (root / other / ".hidden").mkdir()
    (root / other / "dog" / "notes.txt").write_text("no image")
    train, test = ready(root, folders[1])
    assert len(train[1]) == 30
    assert test[1].tolist() == [1, 1]
    assert colours(test)[1] == 100


def test_a_class_called_train_is_no_split(folders: Folders) -> None:
    folders[0].joinpath("dog").rename(folders[0] / "train")
    assert ready(*folders)[0][1].unique().tolist() == [0, 1, 2]


def test_batches_are_normalised_by_the_training_images(folders: Folders) -> None:
    source = data_set("image_folder", str(folders[1]), DataOptions(path=str(folders[0]))).load()[0]
    images, labels = source.batch(torch.arange(len(source)))
    assert labels.dtype == torch.int64
    assert images.dtype == torch.float32
    assert images[:, :2].mean((0, 2, 3)).abs().max() < 1e-4
    assert (images[:, :2].std((0, 2, 3), correction=0) - 1).abs().max() < 1e-4
    assert images[:, 2].abs().max() < 1e-4, "a channel of one colour is not divided by nothing"


def test_images_are_decoded_right_and_brought_to_a_shape(folders: Folders) -> None:
    exact = np.random.default_rng(0).integers(0, 256, (4, 6, 3))
    picture(folders[0] / "cat" / "0.png", exact)
    picture(folders[0] / "dog" / "1.png", 50, size=(12, 8), mode="L")
    refused(*folders, r"has 12x8 pixels, and .*0\.png 6x4; .*data\.shape=\[3,HEIGHT,WIDTH\]")
    (train, _), (test, _) = ready(*folders, shape=(3, 4, 6))
    assert any(np.array_equal(image.permute(1, 2, 0).numpy(), exact) for image in (*train, *test))
    (small, _), _ = ready(*folders, shape=(1, 2, 2))
    assert small.shape == (24, 1, 2, 2)
    assert 50 in small[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_of_16_bits_the_upper_8_are_taken(suffix: str, folders: Folders) -> None:
    for path in folders[0].glob("cat/*"):
        path.unlink()
    for value in range(10):
        Image.fromarray(np.full((4, 6), value << 8 | 255, np.uint16)).save(folders[0] / "cat" / f"{value}.{suffix}")
    for channels in (1, 3):
        parts = ready(*folders, shape=(channels, 4, 6))
        assert sorted(colour for part in parts for colour in colours((part[0][part[1] == 0],))) == list(range(10))


def test_what_was_decoded_is_kept_until_the_images_change(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    before = colours(ready(*folders)[0])
    opened: list[str] = []
    really = decode._open
    monkeypatch.setattr(decode, "_open", lambda path, mode: opened.append(path) or really(path, mode))
    assert colours(ready(*folders)[0]) == before
    assert opened == []
    picture(folders[0] / "cat" / "0.png", 255)
    assert 255 in colours(ready(*folders)[0]) + colours(ready(*folders)[1])
    assert len(opened) == 31


def test_ranks_map_one_file_and_cannot_write_it(folders: Folders) -> None:
    (train, _), _ = ready(*folders)
    train.zero_()
    assert max(colours(ready(*folders)[0])) > 0
    source = next(folders[1].glob("decoded/*/train-images.npy"))
    with open("/proc/self/maps") as maps:
        assert str(source) in maps.read()


def test_where_the_data_folder_cannot_be_written_it_is_kept_in_the_users_own_temporary_one(
    folders: Folders, tmp_path: Path
) -> None:
    folders[1].write_text("a file, not a folder")
    train, _ = ready(*folders)
    own = tmp_path / "tmp" / f"elche-bench-{os.getuid()}"
    assert len(list(own.glob("decoded/*/about.json"))) == 1
    assert own.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(own)
    own.mkdir()
    own.chmod(0o777)  # anyone could have put there what he likes
    refused(*folders, "no place to keep decoded images .*set data.dir to a folder with room")
    assert len(colours(train)) == 24


def test_a_disk_without_room_is_an_error_and_no_crash(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(*folders, "no place to keep decoded images .*No space left on device")


def test_a_system_that_lacks_what_only_some_have_decodes_too(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS it ended with an AttributeError."""
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert len(ready(*folders)[0][1]) == 24


def test_an_interrupted_attempt_is_never_taken_for_whole(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decode, "_fill", stop)
        with pytest.raises(KeyboardInterrupt):
            ready(*folders)
    assert not left(folders[1])
    (folders[1] / "decoded" / f".{'0' * 32}.part").mkdir()  # of a process that was killed
    assert len(ready(*folders)[0][1]) == 24
    assert len(left(folders[1])) == 1


@pytest.mark.parametrize("name", ["train-images.npy", "eval-images.npy", "train-labels.npy", "about.json"])
def test_kept_images_that_are_damaged_are_named(name: str, folders: Folders) -> None:
    ready(*folders)
    path = next(folders[1].glob(f"decoded/*/{name}"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"damaged file {path}; remove the folder"):
        ready(*folders)


def test_a_place_depends_on_names_sizes_times_labels_and_form(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    for path in (one, two):
        path.write_text("a")
        os.utime(path, (1, 1))
    files = [(str(one), 0), (str(two), 1)]

    def key(train: list[tuple[str, int]], form: object = None) -> str:
        return image_cache.place("", (train, [files[0]]), form).key

    keys = [key(files), key(files[:1]), key([files[0], (str(two), 2)]), key(files, (3, 2, 2))]
    os.utime(two, (1, 2))
    keys.append(key(files))
    two.write_text("ab")
    os.utime(two, (1, 1))
    keys.append(key(files))
    assert len(set(keys)) == 6


def test_the_scale_that_is_said_is_the_one_that_pixels_were_divided_by(folders: Folders) -> None:
    """Without it the error of `conv_ae` was in other units than of the other data sets."""
    own = DataOptions(path=str(folders[0]))
    for name, asked in (("image_folder", own), ("synthetic", DataOptions(samples=20, shape=(3, 4, 4)))):
        prepare(name, str(folders[1]), asked)
        data = data_set(name, str(folders[1]), asked)
        images = data.load()[0].batch(torch.arange(8))[0]
        levels = (images - images[0]) * torch.tensor(data.std).view(-1, 1, 1) * 255
        assert levels.abs().max() > 1
        assert torch.allclose(levels, levels.round(), atol=1e-2), f"{name}: whole steps of a byte"
