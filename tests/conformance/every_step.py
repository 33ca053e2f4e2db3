"""Post-local SGD that averages after every step, from the first."""

from __future__ import annotations

from ddp.runtime.engines.torch_local_sgd import LocalStep
from ddp.runtime.engines.torch_peer import TorchBackend


class EveryStep(LocalStep):
    warmup, period = 0, 1


class Backend(TorchBackend):
    team = EveryStep
