"""What every rank inherits."""

from __future__ import annotations

import multiprocessing
import platform
import resource
from multiprocessing.connection import Connection

import pytest
import torch

from ddp.process import forkserver

MEGABYTES_8 = 1 << 21
"""Elements of float32."""


def _step() -> None:
    activations = [torch.ones(MEGABYTES_8) for _ in range(4)]
    del activations


def _faults(end: Connection) -> None:
    for _ in range(3):
        _step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        _step()
    end.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_rank_keeps_the_memory_that_a_step_gives_back() -> None:
    """New memory from the system would cost a fault for each page of it: 81,920 here."""
    ours, theirs = multiprocessing.Pipe()
    process = forkserver.warm().Process(target=_faults, args=(theirs,))
    process.start()
    assert ours.poll(60.0)
    assert ours.recv() < 1000
    process.join()
