"""What is wrong with a user's own images, by name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.models.data import image_folder, prepare
from tests.models.data_files import picture
from tests.models.user_images import Folders, refused


def truncate(root: Path) -> None:
    path = root / "dog" / "3.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-40])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "corrupt": (lambda root: (root / "dog" / "3.png").write_bytes(b"no image"), r"cannot read image .*dog/3\.png \("),
    "truncated": (truncate, r"cannot read image .*dog/3\.jpg \(image file is truncated"),
    "a pipe": (lambda root: os.mkfifo(root / "dog" / "pipe.png"), r"cannot read image .*dog/pipe\.png \(it is no file"),
    "empty file": (lambda root: (root / "eel" / "7.png").write_bytes(b""), r"cannot read image .*eel/7\.png \("),
    "dangling link": (
        lambda root: (root / "cat" / "x.png").symlink_to("gone"),
        r"cannot read image .*cat/x\.png \(it is no file, or a link to none",
    ),
    "values of 32 bits": (
        lambda root: Image.fromarray(np.ones((4, 6), np.float32)).save(root / "dog" / "3.tif"),
        r"cannot read image .*dog/3\.tif \(its values are of 32 bits",
    ),
    "links in a circle": (
        lambda root: (shutil.rmtree(root), root.symlink_to(root)),
        r"data\.path=.*images is no folder",
    ),
    "empty folder": (lambda root: (root / "fox").mkdir(), r"images/fox has no images \(\.jpg, "),
    "no images": (
        lambda root: [path.rename(path.with_suffix(".txt")) for path in root.glob("cat/*")],
        "cat has no images",
    ),
    "no classes": (
        lambda root: [shutil.rmtree(root / name) for name in ("cat", "dog", "eel")],
        "images has no folders; put the images of each class into a folder of its own",
    ),
    "parts without classes": (
        lambda root: (
            [shutil.rmtree(path) for path in root.glob("???")],
            [picture(root / part / f"{number}.png") for part in ("train", "test") for number in range(10)],
        ),
        "has test and train without folders of classes",
    ),
    "not there": (shutil.rmtree, r"data\.path=.*images is no folder"),
    "a file": (lambda root: (shutil.rmtree(root), root.write_text("")), r"data\.path=.*images is no folder"),
    "train alone": (
        lambda root: [
            (root / "train").mkdir(),
            *(path.rename(root / "train" / path.name) for path in root.glob("???")),
        ],
        "has a folder train, but neither test nor val",
    ),
    "val alone": (
        lambda root: [
            (root / "val").mkdir(),
            *(path.rename(root / "val" / path.name) for path in root.glob("???") if path.name != "val"),
        ],
        "has val, but no train; add one",
    ),
    "parts by other names": (
        lambda root: [
            shutil.copytree(root, root.with_name("all")),
            *(shutil.rmtree(path) for path in root.glob("???")),
            shutil.copytree(root.with_name("all"), root / "Training"),
            shutil.copytree(root.with_name("all"), root / "Testing"),
        ],
        "has Testing and Training, but no train; add one, laid out as they are, or rename them: train, and test or val",
    ),
    "a class that was not trained": (
        lambda root: [
            picture(root / "train" / "cat" / "a.png"),
            picture(root / "test" / "dgo" / "b.png"),
        ],
        r"images/test/dgo: there is no class of this name in .*images/train; rename the folder or remove it",
    ),
    "a test of nothing": (
        lambda root: [picture(root / "train" / "cat" / "a.png"), (root / "test").mkdir()],
        "images/test has no images",
    ),
    "one image a class": (
        lambda root: [path.unlink() for path in root.glob("*/[1-9].png")],
        "too few images to hold a fifth of each class out",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_named(name: str, folders: Folders) -> None:
    change, said = DAMAGES[name]
    change(folders[0])
    refused(*folders, said)


def test_settings_that_images_cannot_have(folders: Folders) -> None:
    refused(*folders, r"data\.shape: 2 channels; images of a folder have 3 \(RGB\) or 1 \(grey\)", shape=(2, 4, 4))
    with pytest.raises(ValueError, match=re.escape("needs data.path=FOLDER")):
        prepare("image_folder", str(folders[1]))


def test_links_that_lead_in_circles_are_not_followed(folders: Folders) -> None:
    (folders[0] / "cat" / "again").symlink_to(folders[0])
    assert len(image_folder.listing(folders[0], 0).train) == 24
