"""Torchvision against the data sets and the augmentation here."""

from __future__ import annotations

import hashlib
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import datasets
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from bench.models.data import cifar10, mnist
from bench.models.data.idx import _read
from benchmarks.libraries.compare import Work, compare
from ddp.data.augment import shift_and_flip
from ddp.data.draws import Draws
from ddp.data.seeded import Seeded
from tests.models.data_files import cifar_batch, write_idx


def reading() -> None:
    """Files of the size of MNIST and CIFAR-10, read by the data sets here and by torchvision."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        home, cifar, raw = Path(name), Path(name) / cifar10.FILES.folder, mnist.FILES.raw(name)
        raw.mkdir(parents=True)
        cifar.mkdir()
        for part, count in (("train", 60_000), ("t10k", 10_000)):
            write_idx(raw / f"{part}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28), dtype=np.uint8))
            write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)
        batches = [*cifar10.FILES.train, *cifar10.FILES.test]
        for batch in batches:
            images = draw.integers(0, 256, (10_000, 3072), dtype=np.uint8)
            cifar_batch(cifar / batch, images, (np.arange(10_000) % 10).tolist())
        (cifar / "batches.meta").write_bytes(pickle.dumps({"label_names": list("0123456789")}))
        sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in cifar.iterdir()}

        class Generated(datasets.CIFAR10):
            train_list = [[batch, sums[batch]] for batch in cifar10.FILES.train]  # noqa: RUF012
            test_list = [[batch, sums[batch]] for batch in cifar10.FILES.test]  # noqa: RUF012
            meta = {"filename": "batches.meta", "key": "label_names", "md5": sums["batches.meta"]}  # noqa: RUF012

        def chw(train: bool) -> object:
            return np.ascontiguousarray(Generated(home, train=train).data.transpose(0, 3, 1, 2))

        mnist_files = [
            (raw / f"{part}-images-idx3-ubyte", raw / f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")
        ]
        compare(
            "reading the files of MNIST to bytes",
            {
                "bench.models.data.idx": lambda: [
                    (_read(images, 3), _read(labels, 1)) for images, labels in mnist_files
                ],
                "torchvision": lambda: [datasets.MNIST(home, train=train) for train in (True, False)],
            },
        )
        with warnings.catch_warnings(action="ignore"):
            compare(
                "reading the files of CIFAR-10 to bytes [n, 3, 32, 32]",
                {
                    "bench.models.data.cifar": lambda: [
                        np.concatenate([cifar10.FILES._read(cifar / batch)[0] for batch in part])
                        for part in (cifar10.FILES.train, cifar10.FILES.test)
                    ],
                    "torchvision": lambda: [chw(train) for train in (True, False)],
                },
                trials=5,
            )


def decoding() -> None:
    """JPEG files of 32x32 and 256x256 pixels, by Pillow and by torchvision."""
    draw = np.random.default_rng(0)
    for size, count in ((32, 500), (256, 100)):
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/{number}.jpg" for number in range(count)]
            for path in paths:
                Image.fromarray(draw.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)).resize(
                    (size, size)
                ).save(path)
            works: dict[str, Work] = {
                "Pillow": lambda paths=paths: [np.asarray(Image.open(path).convert("RGB")) for path in paths],
                "torchvision.io": lambda paths=paths: [decode_image(path, ImageReadMode.RGB) for path in paths],
            }
            compare(f"decoding {count} JPEG files of {size}x{size}", works)


def augmenting() -> None:
    """A batch of 64 images 3x32x32, each cropped from its padding of 4 and mirrored by its own random stream."""
    images, indices, mode = torch.randn(64, 3, 32, 32), torch.arange(64), Seeded()
    transform = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])

    def by_sample() -> Tensor:
        with mode:
            return torch.stack([(mode.seed(number), transform(image))[1] for number, image in enumerate(images)])

    compare(
        "augmenting 64 images 3x32x32, a random stream for each",
        {
            "ddp.data.augment": lambda: shift_and_flip(images, 4, Draws(0, 0, indices)),
            "torchvision.transforms.v2, sample by sample": by_sample,
        },
    )
