"""`fashion_mnist`: 70000 pictures of clothes, 28x28 pixels (Xiao et al. 2017), as torchvision has them; 10000 are test."""

from __future__ import annotations

from bench.models.data.idx import IdxFiles

FILES = IdxFiles(
    name="fashion_mnist",
    folder="FashionMNIST",
    mirrors=["http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"],
    digests={
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    mean=0.2860,
    std=0.3530,
)
ORIGIN = FILES.origin
