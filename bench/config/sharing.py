"""Decides which cells of a sweep run side by side on this machine (`timing=off`), and which cell is next. Pure.

Each rank needs its own core or GPU; a cell that needs more than the machine has runs alone. Knows no process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from ddp.engine.modes import engine_of

CELL_BYTES = 1 << 30
"""Memory of a cell's own process, and of each of its ranks."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class CellNeeds:
    """The needs of a cell, which decide whether other cells may run beside it."""

    ranks: int
    timing: bool
    on_gpus: bool
    """Whether it uses GPUs if each rank has one."""
    on_shared: bool = False
    """Whether it uses GPUs even if ranks share them."""

    @staticmethod
    def of(composed: DictConfig) -> CellNeeds:
        """Return the needs of a composed cell. Invalid settings raise nothing here: the run itself refuses them."""
        size, engine = (OmegaConf.select(composed, key) for key in ("world_size", "engine.name"))
        own = 1 if isinstance(engine, str) and engine_of(engine).one_rank else 2
        device = OmegaConf.select(composed, "cluster.device")
        timing = OmegaConf.select(composed, "timing") is not False
        ranks = size if isinstance(size, int) and size > 0 else own
        return CellNeeds(ranks, timing, device != "cpu", device == "cuda")

    def uses(self, gpus: int) -> bool:
        """Return whether its ranks train on a host's GPUs."""
        return gpus > 0 and (self.on_shared or (self.on_gpus and self.ranks <= gpus))


@dataclass(frozen=True)
class Resources:
    """The cores, GPUs and memory that cells share."""

    cores: int
    gpus: tuple[str, ...] = ()
    """GPUs, as named in `CUDA_VISIBLE_DEVICES`."""
    memory: int = 1 << 62
    """Free memory, bytes."""


def visible_gpus(variable: str) -> tuple[str, ...]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` names: as CUDA does, those before the first -1."""
    names = [name.strip() for name in variable.split(",")]
    return tuple(name for name in names[: names.index("-1") if "-1" in names else None] if name)


@dataclass(frozen=True)
class SharingPlan:
    """How cells run side by side."""

    costs: tuple[int, ...]
    """By cell: its part of `capacity`."""
    capacity: int
    variables: tuple[Mapping[str, str], ...]
    """By process: its environment variables. Each process runs one cell after the other."""

    def next(self, waiting: Sequence[int], running: Sequence[int]) -> int | None:
        """Return the first of the `waiting` cells that fits beside the `running` ones; None if none fits."""
        free = self.capacity - sum(self.costs[cell] for cell in running)
        fitting = (cell for cell in waiting if self.costs[cell] <= free or not running)
        return next(fitting, None)


def sharing_plan(cells: Sequence[CellNeeds], there: Resources) -> SharingPlan | None:
    """Return how the cells of a sweep run side by side; None if a cell is timed, or no two cells fit."""
    if len(cells) < 2 or any(cell.timing for cell in cells):
        return None
    costs, capacity = tuple(cell.ranks for cell in cells), there.cores
    largest = max(costs)
    slices: tuple[Mapping[str, str], ...] | None = None
    if any(cell.uses(len(there.gpus)) for cell in cells):  # what a process sees is settled when it begins
        capacity = min(len(there.gpus), there.cores) // largest
        slices = tuple({VISIBLE: ",".join(there.gpus[n * largest : (n + 1) * largest])} for n in range(capacity))
        costs = (1,) * len(cells)
    most = min(
        len(cells), _together(costs, capacity), there.memory // (CELL_BYTES * (1 + min(cell.ranks for cell in cells)))
    )
    if most < 2:
        return None
    return SharingPlan(costs, capacity, ({},) * most if slices is None else slices[:most])


def _together(costs: Sequence[int], capacity: int) -> int:
    """Return the largest number of cells that fit at a time, counted from the smallest."""
    count = used = 0
    for cost in sorted(costs):
        used += cost
        if used > capacity:
            break
        count += 1
    return count
