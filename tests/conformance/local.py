"""Post-local SGD with settings short enough for a test."""

from __future__ import annotations

from ddp.runtime.engines.torch_local_sgd import LocalStep
from ddp.runtime.engines.torch_peer import TorchBackend


class EveryThird(LocalStep):
    warmup, period = 2, 3


class Backend(TorchBackend):
    team = EveryThird
