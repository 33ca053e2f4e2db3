"""Decides whether a run can be calibrated on."""

from __future__ import annotations

from bench.config.spec import RunSpec
from bench.results.analysis.stream import RunRecords
from bench.results.training_settings import micro_batches
from ddp.backends import BACKENDS
from ddp.core.messages.commands import Drop
from ddp.core.policies import POLICIES
from ddp.settings import known


def check(stream: RunRecords, spec: RunSpec) -> None:
    """Raise ValueError if a run cannot be calibrated on."""
    if spec.source:
        raise ValueError(f"its source is {spec.source}, so its times were not measured: give a real run")
    if spec.world_size < 2 or spec.backend is None or len(stream.ready) < spec.world_size:
        raise ValueError("it has no ranks that meet: calibrate on a run of two ranks or more of backend nccl or cpu")
    if len(spec.speeds) not in (0, spec.world_size):
        raise ValueError(f"it has {len(spec.speeds)} speeds of {spec.world_size} ranks: its records were changed")
    known("backend", spec.backend, BACKENDS)
    known("policy", str(spec.policy), POLICIES)
    if stream.figures.samples <= 0:
        raise ValueError("its ranks report no sample as trained: calibrate on a run that trained longer")
    if not spec.timing:
        raise ValueError("its times say nothing, as cells ran beside it: train it with timing=on")
    if stream.hidden or not BACKENDS[spec.backend].averages:
        raise ValueError(f"mode {spec.mode} shows no collectives of its own: calibrate on nccl_sync or another mode")
    if micro_batches(spec.config) > 1:
        raise ValueError("its steps are of micro-batches: calibrate on a run with train.accumulate=1")
    if stream.of(Drop) or stream.resumed is not None:
        raise ValueError("it lost ranks or went on from another run: calibrate on one that is whole")
    if spec.faults:
        raise ValueError("faults were scripted for it, which no predicted cell has: calibrate on a run without")
