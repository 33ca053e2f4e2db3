"""One thread for torch; a folder of a user's own, a folder of images, a server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench import models
from bench.models.data import DATA
from ddp import user_code
from tests.models.data_files import write_images
from tests.models.site import Site
from tests.models.user_images import Folders


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads, much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty present folder of a user; what is enrolled and imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    known = [dict(registry) for registry in (models.MODELS, DATA)]
    path, modules = sys.path[:], set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    for registry, names in zip((models.MODELS, DATA), known, strict=True):
        for name in set(registry) - set(names):
            del registry[name]
    user_code.digest.cache_clear()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """(images, data folder); the temporary folder is one of the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("bench.models.data.images.AT_ONCE", 0)
    write_images(tmp_path / "images")
    return tmp_path / "images", tmp_path / "data"


def colours(part: tuple[torch.Tensor, ...]) -> list[int]:
    """The number that each image was painted with."""
    return part[0][:, 0, 0, 0].tolist()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        if server.hold is not None:
            server.hold.set()
        server.shutdown()
        thread.join()
