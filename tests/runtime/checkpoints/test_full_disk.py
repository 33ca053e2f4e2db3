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
from ddp.core.errors import OutOfResources
from ddp.process.meter import Meter


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


def test_measurements_without_room_name_the_full_disk_and_are_no_bug(tmp_path: Path) -> None:
    """The run ended with a traceback, which named a link in memory."""
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    disk.mkdir()
    memory.mkdir()
    (memory / "slices-0.jsonl").symlink_to(disk / "slices-0.jsonl")
    meter = Meter(0, memory, torch.device("cpu"))
    with limited(resource.RLIMIT_FSIZE, 0), pytest.raises(OutOfResources, match="File too large") as caught:
        meter.flush()
    assert str(disk / "slices-0.jsonl") in str(caught.value)
