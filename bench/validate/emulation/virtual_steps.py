"""Checks that a step in virtual time lasts as long as its samples, its rank's speed and its own draw say. Pure.

The time of each step, divided by that of a full batch, gives whole samples, which add up to those that the rank trained. So
a draw, a speed or a batch of another step or rank shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from ddp.core.settings.virtual_time import CONSTANT
from ddp.sim.distributions import distribution

KEPT = 5
"""First version of results in which a step's time depends on its samples."""
DRAWN = 4096
"""Draws of a rank, which repeat after that."""
APART = 0.05
"""Samples by which rounding may move a step's."""


def otherwise_timed(m: Metrics, known: Records, config: dict[str, Any]) -> str:
    """Name the rank whose steps took other times than the settings give; empty: none."""
    virtual = config.get("virtual")
    if m.engine != "virtual" or m.world_size == 1 or m.schema_version < KEPT or not isinstance(virtual, dict):
        return ""
    given = group_of(config, "cluster").get("speeds")
    speeds = given if isinstance(given, list) and given else [1.0] * m.world_size
    for rank, took in sorted(known.stepped.items()):
        reports = [event for event in known.progress if event.rank == rank]
        if rank >= len(speeds) or len(took) != sum(event.steps for event in reports):
            continue
        full_s = virtual["step_s"] / speeds[rank] * _drawn(virtual["steps"], m.seed, rank, len(took))
        samples, trained = took / full_s * m.batch_size, sum(event.samples for event in reports)
        off = np.abs(samples - np.round(samples))
        if len(took) and (off.max() > APART or abs(samples.sum() - trained) > APART * len(took)):
            step = int(off.argmax())
            return (
                f"step {step} of rank {rank} took {took[step] * 1e3:.4g} ms of virtual time, that of {samples[step]:.4g} "
                f"samples; its {len(took)} steps that of {samples.sum():.6g}, and it trained {trained} (virtual.step_s, "
                "virtual.steps, cluster.speeds)"
            )
    return ""


def _drawn(steps: str, seed: int, rank: int, count: int) -> Any:
    """Return the factors on the times of a rank's steps, shape [count]."""
    if steps == CONSTANT:
        return np.ones(count)
    series = distribution(steps, "virtual.steps").draw(DRAWN, np.random.default_rng((seed, rank)))
    return np.resize(series, count)
