"""How good the controller is, measured in virtual time. Deterministic: every number comes from a seed.

`python -m benchmarks.controller` prints the tables of docs/controller.md; `--write` puts them there.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tabulate import tabulate

from ddp.core.commands import Plan
from ddp.core.events import Averaged, RoundClosed
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.windows import WindowSettings
from ddp.core.world import World
from ddp.sim import Costs, Simulation, simulate

DOCUMENT = Path(__file__).parent.parent / "docs" / "controller.md"
STEP_S = 0.01
"""Of the fastest rank."""
WIRE_S, LATENCY_S = 0.002, 0.00002
UNCALIBRATED = 2
"""Windows that are granted before the first one is measured."""

StepCost = Callable[[int, int], float]


@dataclass(frozen=True)
class Case:
    """Ranks and what bringing them together costs."""

    step_s: tuple[float, ...]
    blocking: bool
    jitter: float = 0.0
    """A step takes up to this part more or less, evenly spread."""
    wire_s: float = WIRE_S
    windows: int = 40
    """Length of the training, in windows of 10 steps of the slowest rank."""
    epochs: int = 2
    seed: int = 0

    @property
    def speed(self) -> float:
        """Steps per second of ranks that never wait: the sum-of-speeds bound."""
        return sum(1 / cost for cost in self.step_s)

    def world(self) -> World:
        """Batches of one sample, so that samples are steps."""
        steps = round(self.windows * 10 * max(self.step_s) * self.speed / self.epochs)
        return World(len(self.step_s), steps, 1, self.epochs, self.blocking, in_step=False, deadline_s=1e6)

    def cost(self, rank: int, step: int) -> float:
        """Seconds of a step."""
        if not self.jitter:
            return self.step_s[rank]
        noise = random.Random(f"{self.seed}.{rank}.{step}").uniform(-1, 1)
        return self.step_s[rank] * (1 + self.jitter * noise)

    def play(self, policy: WindowSettings, cost: StepCost | None = None) -> Simulation:
        """The run under `policy`."""
        costs = Costs(
            cost or self.cost, latency_s=LATENCY_S, wire_s=self.wire_s, reduce_s=self.wire_s, report_s=2 * STEP_S
        )
        return simulate(policy, self.world(), costs=costs, tick_s=1e4)


def drawn(size: int, spread: float, seed: int) -> tuple[float, ...]:
    """Seconds per step of `size` ranks, the slowest `spread` times as slow as the fastest, the rest anywhere between."""
    rng = random.Random(f"{size}.{spread}.{seed}")
    ratios = [1.0, spread, *(spread ** rng.random() for _ in range(size - 2))]
    rng.shuffle(ratios)
    return tuple(STEP_S * ratio for ratio in ratios)


def closed(played: Simulation) -> list[RoundClosed]:
    """The rounds of a run."""
    return [record for _, record in played.records if isinstance(record, RoundClosed)]


def plans(played: Simulation) -> list[Plan]:
    """The plans of a run."""
    return [record for _, record in played.records if isinstance(record, Plan)]


def regret(case: Case, played: Simulation, skipped: int = UNCALIBRATED) -> float:
    """Part of the time after calibration that the oracle would not have needed.

    The oracle knows all speeds and gives out parts of a step: all ranks are always busy, but for the time on the wire of as
    many averages as there were, where ranks block. The ends of epochs and of the training count.
    """
    rounds = closed(played)
    begin = rounds[skipped - 1].at
    end = max(record.at for _, record in played.records if isinstance(record, Averaged))
    steps = sum(entry.stop > begin for entry in played.trained)
    wire = case.wire_s * (len(rounds) - skipped) if case.blocking else 0.0
    return 1 - (steps / case.speed + wire) / (end - begin)


def overhead(case: Case, played: Simulation, skipped: int) -> float:
    """Median over windows of the time of an average over the window's."""
    shares = []
    for window in closed(played)[skipped:]:
        shares.append(window.sync_s / max(window.busy_s))
    return sorted(shares)[len(shares) // 2] if shares else 0.0


def anchor_changes(played: Simulation, skipped: int) -> float:
    """Changes of the anchor per window, after the first `skipped`."""
    changes, windows, anchor = 0, 0, None
    for _, record in played.records:
        if isinstance(record, RoundClosed):
            windows += 1
        elif isinstance(record, Plan):
            changes += windows > skipped and record.anchor != anchor
            anchor = record.anchor
    return changes / max(windows - skipped, 1)


if __name__ == "__main__":
    pass
