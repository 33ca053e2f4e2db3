"""A cell to predict, and what follows from it and the calibrated run: speeds, samples, learning rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.predict.calibration import Calibration
from bench.predict.traces import TracedSteps
from bench.results.runfolder import group_of
from ddp.core.network.links import Links
from ddp.core.policies import meets_every_step
from ddp.sim.distributions import StepDistribution

LEAST_STEPS = 20
"""Least steps of each rank. If the run's epochs are too short for that, the played ones are longer, as a run of its first
windows only says little of ranks."""


@dataclass(frozen=True)
class PredictedCell:
    """A cell to predict: a number of ranks, over some links, with a policy."""

    ranks: int
    links: Links | None
    policy: str
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the policy that differ from its defaults."""
    speeds: tuple[float, ...] = ()
    """By rank; further ranks repeat them. Empty: as calibrated."""
    healed: tuple[int, ...] = ()
    """Ranks that get the speed of the fastest one."""
    steps: StepDistribution | TracedSteps | None = None
    """Source of step times; None: the measured ones."""
    cores: int | None = None
    """Cores that all ranks share; None: each rank has its own."""

    @property
    def in_step(self) -> bool:
        """Whether gradients are averaged inside steps, if the backend can do so."""
        return meets_every_step(self.policy)


def speeds_of(cell: PredictedCell, calibration: Calibration) -> tuple[float, ...]:
    """Return the speed of each rank of a cell; (): no speed is emulated."""
    given = cell.speeds or calibration.spec.speeds
    speeds = tuple(given[rank % len(given)] for rank in range(cell.ranks)) if given else ()
    return tuple(max(speeds) if rank in cell.healed else speed for rank, speed in enumerate(speeds))


def step_s_of(calibration: Calibration) -> float:
    """Return the emulated seconds of a step at speed 1 (`cluster.step_s`); 0: steps take as long as they need."""
    return float(group_of(calibration.spec.config, "cluster").get("step_s") or 0.0)


def epoch_of(cell: PredictedCell, calibration: Calibration) -> int:
    """Return the samples of an epoch by the cell's settings: with `train.steps`, each rank does as many as in the run."""
    by_steps = group_of(calibration.spec.config, "train").get("steps") is not None
    return calibration.samples // calibration.ranks * cell.ranks if by_steps else calibration.samples


def samples_of(cell: PredictedCell, calibration: Calibration) -> int:
    """Return the samples of a played epoch: those of `epoch_of`, or enough for `LEAST_STEPS` steps of a rank in the run."""
    least = LEAST_STEPS * cell.ranks * calibration.spec.batch_size
    return max(epoch_of(cell, calibration), -(-least // calibration.spec.epochs))


def lr_scale_of(cell: PredictedCell, calibration: Calibration) -> float:
    """Return the factor on the learning rate (`train.lr_scale_ratio`) for the ranks of a cell."""
    spec = calibration.spec
    return 1.0 + (spec.lr_scale - 1.0) * (cell.ranks - 1) / (spec.world_size - 1)


def shares(cell: PredictedCell) -> bool:
    """Return whether ranks share a core."""
    return cell.cores is not None and cell.ranks > cell.cores


def shared_cores(calibration: Calibration) -> int | None:
    """Return the cores that the ranks of the calibrated run shared: its step times include waiting for one. None: each had
    its own, or they were not recorded, or the ranks computed on GPUs."""
    cores = calibration.cores if calibration.device == "cpu" else None
    return cores if cores is not None and calibration.ranks > cores else None


def default_cores(ranks: int, calibration: Calibration) -> int | None:
    """Return the cores of a cell for which none are given: those that the run's ranks shared, if it has another number of
    ranks. As many ranks wait for a core as long as in the run, and their step times include that."""
    return shared_cores(calibration) if ranks != calibration.ranks else None


def cores_of_run(cores: int | None, calibration: Calibration) -> int | None:
    """Return the cores of the calibrated run's host, for a prediction with `cores`: these if they were not recorded. None:
    each rank is played with a core of its own."""
    return None if cores is None else calibration.cores or cores


def shares_anew(cell: PredictedCell, calibration: Calibration) -> bool:
    """Return whether ranks share cores otherwise than in the calibrated run: another number of ranks or of cores."""
    other = cell.ranks != calibration.ranks or cores_of_run(cell.cores, calibration) != cell.cores
    return other and (shares(cell) or shared_cores(calibration) is not None)
