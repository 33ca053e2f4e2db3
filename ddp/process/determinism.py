"""PyTorch's switches for deterministic algorithms, which apply to the whole process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use only PyTorch's deterministic algorithms inside the `with` block, if `wanted`; then restore the previous
    settings."""
    if not wanted:
        yield
        return
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS reads it at its first use in a process
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
