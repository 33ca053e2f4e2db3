"""`mnist`: 70000 handwritten digits of 28x28 pixels (LeCun et al. 1998), as torchvision has them; 10000 are test."""

from __future__ import annotations

from bench.models.data.idx import IdxFiles

FILES = IdxFiles(
    name="mnist",
    folder="MNIST",
    mirrors=["https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"],
    digests={
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    mean=0.1307,
    std=0.3081,
)
ORIGIN = FILES.origin
