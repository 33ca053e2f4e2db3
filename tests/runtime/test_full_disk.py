"""A part of a checkpoint that cannot be written whole: the error names it, and nothing of it is left."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ddp.checkpoint.checkpoint import part_folder, save


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """This process may not have more of it."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


@pytest.mark.parametrize("room", [0, 700, 20_000, 399_000])
def test_a_part_for_which_there_is_no_room_is_named_and_removed(tmp_path: Path, room: int) -> None:
    path = part_folder(tmp_path, 3) / "rank-1.pt"
    with limited(resource.RLIMIT_FSIZE, room), pytest.raises(OSError, match="File too large") as caught:
        save(tmp_path, 3, "rank-1.pt", {"tensors": [torch.zeros(100_000)]})
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    assert not path.exists()


def test_a_part_for_which_there_is_no_descriptor_is_named(tmp_path: Path) -> None:
    part_folder(tmp_path, 3).mkdir()
    first = os.dup(0)
    os.close(first)
    with limited(resource.RLIMIT_NOFILE, first), pytest.raises(OSError, match="Too many open files") as caught:
        save(tmp_path, 3, "rank-1.pt", {})
    assert caught.value.filename == str(part_folder(tmp_path, 3) / "rank-1.pt")
