"""Warnings that a run's results carry, such as that its ranks share cores. Pure."""

from __future__ import annotations

from bench.base.environment import SHARED_GPU
from bench.base.number_format import plural
from bench.config.config import Config
from bench.config.config_checks import Machine
from bench.config.virtual_checks import VIRTUAL_NOTE
from ddp.engine.modes import engine_of

UNTIMED = "timing=off: other cells may have run beside it, so its speed is not measured"


def warnings_of(config: Config, world_size: int, machine: Machine) -> tuple[str, ...]:
    """Return the warnings for readers of the results."""
    warnings: list[str] = []
    here = machine.ranks(world_size)
    on_gpus = config.cluster.device != "cpu" and machine.gpus >= here
    if machine.hosts > 1:
        warnings.append(f"on {machine.hosts} hosts: the machine shown is rank 0's")
    if engine_of(config.engine.name).virtual and world_size > 1:
        warnings.append(VIRTUAL_NOTE)
    elif here > machine.cores and not on_gpus:
        share = f"{here} ranks share {plural(machine.cores, 'core')}"
        warnings.append(f"oversubscribed: {share}, so speeds say nothing about scaling")
    elif config.cluster.device == "cuda" and not on_gpus:
        warnings.append(f"{here} ranks share {machine.gpus} {SHARED_GPU}")
    if config.cluster.speeds:
        speeds = "/".join(f"{speed:g}" for speed in config.cluster.speeds)
        of = f"{1e3 * config.cluster.step_s:g} ms a step" if config.cluster.step_s else "their speed"
        warnings.append(f"emulated devices: ranks are slowed down to {speeds} of {of}")
    if not config.timing:
        warnings.append(UNTIMED)
    if config.cluster.links:
        warnings.append(f"emulated links: {', '.join(config.cluster.links)}")
    if config.profile.steps:
        warnings.append(f"profiled: torch.profiler slows {config.profile.steps} steps of each rank")
    if config.cluster.faults:
        warnings.append(f"faults on purpose: {', '.join(config.cluster.faults)} (rank@its step:kind)")
    return tuple(warnings)
