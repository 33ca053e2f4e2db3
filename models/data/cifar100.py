"""`cifar100`: 60000 photographs of 100 classes, 3x32x32 (Krizhevsky 2009), as torchvision has them; 10000 are test."""

from __future__ import annotations

from bench.models.data.cifar import CifarFiles
from bench.models.data.download import Remote

FILES = CifarFiles(
    name="cifar100",
    folder="cifar-100-python",
    archive=Remote(
        "cifar-100-python.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
        "eb9058c3a382ffc7106e4002c42a8d85",
    ),
    train=["train"],
    test=["test"],
    labels=b"fine_labels",
    classes=100,
    mean=[0.5071, 0.4865, 0.4409],
    std=[0.2673, 0.2564, 0.2762],
)
ORIGIN = FILES.origin
