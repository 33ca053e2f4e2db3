"""Post-local SGD with settings short enough for a test."""

from __future__ import annotations

from ddp.backends.torch_backend import TorchBackend
from ddp.backends.torch_local_sgd import LocalStep


class EveryThird(LocalStep):
    warmup, period = 2, 3


class Backend(TorchBackend):
    step_type = EveryThird
