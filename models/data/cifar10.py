"""`cifar10`: 60000 photographs of 10 classes, 3x32x32 (Krizhevsky 2009), as torchvision has them; 10000 are test."""

from __future__ import annotations

from bench.models.data.cifar import CifarFiles
from bench.models.data.download import Remote

FILES = CifarFiles(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive=Remote(
        "cifar-10-python.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        "c58f30108f718f92721af3b95e74349a",
    ),
    train=[f"data_batch_{number}" for number in range(1, 6)],
    test=["test_batch"],
    labels=b"labels",
    classes=10,
    mean=[0.4914, 0.4822, 0.4465],
    std=[0.2470, 0.2435, 0.2616],
)
ORIGIN = FILES.origin
