"""What goes wrong with files, here and in torchvision: a download that is cut off, a damaged file, links in a circle."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from torchvision import datasets
from torchvision.datasets.utils import download_url

from bench.models.data import data_set, image_folder, mnist
from bench.models.data.download import Remote, fetch
from tests.models.data_files import write_images, write_mnist
from tests.models.site import CONTENT, Site

DIGEST = hashlib.md5(CONTENT).hexdigest()
WAYS: dict[str, tuple[int, Callable[[str, Path], object]]] = {
    "here": (1, lambda url, home: fetch(Remote("it.bin", (url,), DIGEST), home)),
    "torchvision": (2, lambda url, home: download_url(url, home, "it.bin", DIGEST)),
}
"""Requests of one download (torchvision asks for the file once more, to follow redirects), and how it is made."""


def failing() -> None:
    """What is said, what is left, and what is fetched again."""
    os.environ["no_proxy"] = "127.0.0.1"
    print(f"a download of {len(CONTENT)} bytes, cut off after 100000, and made again")
    for name, (requests, get) in WAYS.items():
        with tempfile.TemporaryDirectory() as folder, Site() as site:
            thread = threading.Thread(target=site.serve_forever, args=(0.01,))
            thread.start()
            site.failures, site.stop_after = requests, 100_000
            _say(f"{name}, cut off", lambda get=get, site=site, folder=folder: get(f"{site.url}/file", Path(folder)))
            left = {path.name: path.stat().st_size for path in Path(folder).iterdir()}
            _say(f"{name}, again", lambda get=get, site=site, folder=folder: get(f"{site.url}/file", Path(folder)))
            print(f"  {name}: left in between {left}; ranges asked for {[wanted for _, wanted in site.asked]}")
            site.shutdown()
            thread.join()
    with tempfile.TemporaryDirectory() as name:
        raw = mnist.FILES.raw(name)
        write_mnist(raw)
        path = raw / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        print("a truncated file of MNIST")
        _say("here", data_set("mnist", name).load)
        _say("torchvision", lambda: datasets.MNIST(name, download=True))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_images(root)
        (root / "cat" / "again").symlink_to(root)
        listing = image_folder.listing(root, 0)
        ours, theirs = len(listing.train) + len(listing.eval), len(datasets.ImageFolder(root))
        print(f"a folder of 30 images with a link to itself: {ours} here, {theirs} in torchvision")


def _say(what: str, work: Callable[[], object]) -> None:
    try:
        work()
        print(f"  {what}: done")
    except Exception as error:  # whatever either raises is what a user would see
        print(f"  {what}: {type(error).__name__}: {' '.join(str(error).split())}")
