"""Post-local SGD that averages after every step, from the first."""

from __future__ import annotations

from ddp.backends.torch_backend import TorchBackend
from ddp.backends.torch_local_sgd import LocalStep


class EveryStep(LocalStep):
    warmup, period = 0, 1


class Backend(TorchBackend):
    step_type = EveryStep
