"""Plays a cell in virtual time: the production coordinator with calibrated costs. Returns records like those of a real
run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.predict.calibration import Calibration
from bench.predict.dated import DatedSimulation
from bench.predict.predicted_cell import (
    PredictedCell,
    cores_of_run,
    lr_scale_of,
    samples_of,
    shares,
    speeds_of,
    step_s_of,
)
from bench.predict.steptimes import LENGTH, WARM, asleep, mean_of, resampled, scaled_draws, slow_part
from bench.results.analysis.volume import WIRE_BYTES
from bench.results.runfolder import group_of
from ddp.backends import world_of
from ddp.core.messages.events import Averaged, Ready, Slice
from ddp.core.messages.run_bounds import Launched
from ddp.core.network.link_costs import meeting_s
from ddp.core.policies import meets_every_step
from ddp.core.settings.checkpoints import Checkpointing
from ddp.process.codec import Record
from ddp.settings import make_policy
from ddp.sim import Costs, Simulation
from ddp.sim.parts import JOIN

SLICE_S = 0.003
"""Seconds for which a thread keeps a core that others want, on Linux."""


@dataclass(frozen=True)
class Assumption:
    """How measured costs grow with the number of ranks, which runs with one number of ranks cannot show."""

    collectives: Callable[[int, int], float]
    """(ranks, calibrated ranks) -> factor on the cost of a collective besides its links."""
    messages: Callable[[int, int], float]
    """The same for a message and its handling."""
    queues: bool = True
    """Ranks that share cores wait for each other's work."""
    cold: bool = False
    """If ranks share a core, all steps are like slow ones, as other ranks' work has replaced their cache contents."""
    beside: float = 0.5
    """Fraction of a rank's processor time besides its work that it uses while others compute, too. It hands in before an
    average, when they still sleep or wait, and is woken after it, when all go on."""


def flat(ranks: int, calibrated: int) -> float:
    """Return 1: the cost does not grow."""
    return 1.0


def as_tree(ranks: int, calibrated: int) -> float:
    """Return the ratio of the depths of trees over the ranks."""
    return math.log2(ranks) / math.log2(calibrated) if ranks > 1 else 0.0


def linear(ranks: int, calibrated: int) -> float:
    """Return the ratio of the numbers of ranks."""
    return ranks / calibrated


NOMINAL = Assumption(as_tree, flat)
CORNERS = (Assumption(flat, flat, queues=False), Assumption(linear, linear, cold=True, beside=1.0))
"""The best and the worst plausible assumptions."""


@dataclass(frozen=True)
class PlayedCell:
    """One play of a cell: records with the time at which they arrived, and slices."""

    records: list[tuple[float, Record]]
    slices: list[Slice]
    end: float
    samples: int
    """Samples of an epoch."""
    status: str


def play(cell: PredictedCell, calibration: Calibration, seed: int, assumed: Assumption = NOMINAL) -> PlayedCell:
    """Play a cell once. Raises TimeoutError if it does not end."""
    spec, samples = calibration.spec, samples_of(cell, calibration)
    world = world_of(
        str(spec.backend),
        cell.ranks,
        samples,
        spec.batch_size,
        spec.epochs,
        deadline_s=math.inf,
        tolerate_loss=True,
        checkpoints=Checkpointing(**saved) if (saved := group_of(spec.config, "checkpoint")) else None,
    )
    records, slices = list[tuple[float, Record]](), list[Slice]()
    begin, size, ways = calibration.start_s, bytes_of(cell, calibration), 2 if calibration.snapshots else 1

    def listen(at: float, record: Any) -> None:
        if isinstance(record, Ready):
            names = ("parameters", "frozen", "device", "transport")
            record = replace(record, **{name: getattr(calibration, name) for name in names})
        elif isinstance(record, Averaged):
            record = replace(record, bytes=ways * size if record.bytes else 0)
        records.append((begin + at, _later(record, begin)))

    def measured(rank: int, kind: str, start: float, stop: float, seq: int) -> None:
        if kind == "forward":
            whole = stop - start
            for part, share in calibration.parts[:-1]:
                slices.append(Slice(begin + start, rank, part, share * whole))
                start += share * whole
            kind = calibration.parts[-1][0]
        slices.append(Slice(begin + start, rank, kind, stop - start, seq, size if kind == "exchange" else 0))

    policy, costs = make_policy(cell.policy, dict(cell.settings)), costs_of(cell, calibration, seed, assumed)
    make = Simulation if averages_in_step(cell, calibration) else DatedSimulation
    simulation = make(policy, world, costs, keep=False, tick_s=math.inf, limit_s=math.inf)
    simulation.measured, simulation.listen = measured, listen
    simulation.run()
    records.insert(0, (0.0, Launched(0.0)))
    return PlayedCell(records, slices, begin + simulation.now, samples, simulation.status)


def _later(record: Any, seconds: float) -> Any:
    return replace(record, at=record.at + seconds) if hasattr(record, "at") else record


def bytes_of(cell: PredictedCell, calibration: Calibration) -> int:
    """Return the bytes that a rank sends in a collective or a snapshot: as measured, or computed from the number of
    parameters."""
    spec = calibration.spec
    if calibration.snapshots or cell.in_step == meets_every_step(spec.policy):
        return calibration.bytes
    if cell.in_step:
        return (calibration.parameters - calibration.frozen) * calibration.width
    return calibration.parameters * WIRE_BYTES.get((spec.config.get("averaging") or {}).get("wire", "float64"), 2)


def costs_of(cell: PredictedCell, calibration: Calibration, seed: int, assumed: Assumption = NOMINAL) -> Costs:
    """Return the costs of operations in a cell; `seed`: of random draws."""
    dice = np.random.default_rng((seed, cell.ranks))
    cold = assumed.cold and shares(cell)
    series, sleeps, first = _series(cell, calibration, dice, cold)
    grown = assumed.collectives(cell.ranks, calibration.ranks)
    own = calibration.wires if cell.in_step or not calibration.rounds.size else calibration.rounds
    own = own if own.size else np.zeros(1)
    in_step = averages_in_step(cell, calibration)
    times = calibration.per_step if in_step else 1.0
    places = dice.integers(0, own.size, LENGTH)
    wires = (own[places] * grown * times).tolist()
    cores = cell.cores if shares(cell) and assumed.queues else None
    apart = cell.in_step and calibration.exits.size and cores is None  # else they leave as the shared cores wake them
    exits = calibration.exits[places] * grown * times if apart else None
    links = None if cell.links is None else replace(cell.links, seed=seed)
    size, same = bytes_of(cell, calibration), cell.in_step == meets_every_step(calibration.spec.policy)
    count = calibration.collectives if same else 1.0  # gradients travel without counters
    faster = lr_scale_of(cell, calibration) / calibration.spec.lr_scale
    added = calibration.links is not None  # if so, measured times do not include those of links

    def step_s(rank: int, done: int) -> float:
        return float(series[rank][done % LENGTH] + (first[rank] if done < WARM else 0.0))

    def wire(members: tuple[int, ...], number: int) -> float:
        own = float(wires[number % LENGTH])
        if links is None or number == JOIN:
            return max(own, 0.0)
        model = meeting_s(links, members, size, count, number)
        return max(own + model, 0.0) if added else max(own, model)

    def evaluate_s(rank: int) -> float:
        busier, then = 1.0, cores_of_run(cell.cores, calibration)
        if cell.cores and then and assumed.queues:
            busier = max(cell.ranks / cell.cores, 1.0) / max(calibration.ranks / then, 1.0)
        return calibration.evaluate_s * calibration.ranks / cell.ranks * busier

    def leave_s(rank: int, number: int, last: bool) -> float:
        return 0.0 if exits is None else float(exits[(number + rank) % LENGTH, 0 if last else 1])

    return Costs(
        step_s,
        lambda rank, done: sleeps[rank][done % len(sleeps[rank])],
        cores=cores,
        beside_s=assumed.beside * calibration.beside_s,
        absorbed=absorbed(cell, calibration),
        by_samples=in_step,
        between_s=min(calibration.gaps_s),
        latency_s=calibration.latency_s * assumed.messages(cell.ranks, calibration.ranks),
        wire=wire,
        leave_s=leave_s if exits is not None else None,
        links=links,
        bytes=size,
        reduce_s=calibration.reduce_s * cell.ranks / calibration.ranks,
        copy_s=calibration.copy_s,
        save_s=calibration.save_s,
        evaluate_s=evaluate_s,
        report_s=calibration.report_s,
        rate=lambda part: faster * calibration.rate(part),
    )


def averages_in_step(cell: PredictedCell, calibration: Calibration) -> bool:
    """Return whether gradients are averaged inside steps: the policy does so, and the backend has collectives."""
    return cell.in_step and not calibration.snapshots


def absorbed(cell: PredictedCell, calibration: Calibration) -> float:
    """Return the fraction of its waiting for a core by which a rank sleeps less, as a step of a given time includes it.

    What a rank waits when it wakes or is woken lies outside of its step; in a longer step, cores are taken from it again
    after each `SLICE_S`. The part of a step behind the exchange of gradients does not count, either."""
    if not step_s_of(calibration):
        return 0.0
    work = mean_of(calibration.steps)
    whole = work + NOMINAL.beside * calibration.beside_s
    behind = dict(calibration.parts).get("optimizer", 0.0) if averages_in_step(cell, calibration) else 0.0
    return work * (1.0 - behind) / whole * (1.0 - min(SLICE_S / whole, 1.0))


Series = list[list[float]]


def _series(
    cell: PredictedCell, calibration: Calibration, dice: np.random.Generator, cold: bool
) -> tuple[Series, Series, list[float]]:
    """Return, by rank, seconds of work of each step, seconds of emulated slowness behind each (one if all are equal), and
    extra seconds of each first step."""
    speeds, step_s = speeds_of(cell, calibration), step_s_of(calibration)
    fastest = min(range(calibration.ranks), key=lambda rank: calibration.steps[rank].mean())
    rows, sleeps, first = Series(), Series(), list[float]()
    factors = [np.ones(1)] * cell.ranks
    if cell.steps is not None:
        steps = samples_of(cell, calibration) * calibration.spec.epochs / calibration.spec.batch_size
        factors = scaled_draws(cell.steps.draw, cell.ranks, math.ceil(steps / cell.ranks), dice)
        least = min(factors, key=np.mean)
        factors = [least if rank in cell.healed else each for rank, each in enumerate(factors)]
    for rank, relative in enumerate(factors):
        source = fastest if rank in cell.healed else rank % calibration.ranks
        own = calibration.steps[source]
        drawn = resampled(own, LENGTH, dice) if cell.steps is None else mean_of(calibration.steps) * relative
        drawn = drawn * slow_part(own) if cold else drawn
        beside = calibration.gaps_s[source] - min(calibration.gaps_s)
        rows.append((beside + drawn).tolist())
        sleeps.append(asleep(drawn, speeds[rank], step_s * relative).tolist() if speeds else [0.0])
        first.append(calibration.first_s[source] / WARM)
    return rows, sleeps, first
