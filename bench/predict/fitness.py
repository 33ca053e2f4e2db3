"""Decides whether a run can be calibrated on."""

from __future__ import annotations

from dataclasses import fields

from bench.config.spec import RunSpec
from bench.results.analysis.stream import RunRecords
from bench.results.runfolder import group_of
from bench.results.training_settings import micro_batches
from ddp.backends import BACKENDS
from ddp.core.messages.commands import Drop
from ddp.core.messages.run_bounds import RunEnd
from ddp.core.policies import POLICIES
from ddp.core.settings.checkpoints import Checkpointing
from ddp.settings import known


def check_end(end: RunEnd) -> None:
    """Raise ValueError if a run did not train to its end: its costs and learning rates are those of a part."""
    if end.status != "ok":
        raise ValueError(f"its status is {end.status}: calibrate on a run that trained to its end")


def check(stream: RunRecords, spec: RunSpec) -> None:
    """Raise ValueError if a run cannot be calibrated on."""
    if spec.source:
        raise ValueError(f"its source is {spec.source}, so its times were not measured: give a real run")
    if spec.world_size < 2 or spec.backend is None or len(stream.ready) < spec.world_size:
        raise ValueError("it has no ranks that meet: calibrate on a run of two ranks or more of backend nccl or cpu")
    _check_sizes(spec)
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


def _check_sizes(spec: RunSpec) -> None:
    """Raise ValueError for a batch, epochs, speeds or emulated steps that no run has."""
    step_s = group_of(spec.config, "cluster").get("step_s") or 0.0
    sound = min(spec.batch_size, spec.epochs, 1) == 1 and all(speed > 0 for speed in spec.speeds)
    if not sound or not isinstance(step_s, int | float) or step_s < 0:
        raise ValueError("it has a batch, epochs, speeds or steps that no run has: its records were changed")
    if len(spec.speeds) not in (0, spec.world_size):
        raise ValueError(f"it has {len(spec.speeds)} speeds of {spec.world_size} ranks: its records were changed")
    unknown = group_of(spec.config, "checkpoint").keys() - {field.name for field in fields(Checkpointing)}
    if unknown:
        raise ValueError(f"its setting checkpoint.{min(unknown)} is not known here: was it of another version?")
