"""The costs of a run, from its own records: step times by rank, averaging, messages, evaluation, checkpoints. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bench.config.spec import RunSpec
from bench.predict.fitness import check
from bench.predict.loop_costs import PARTS, beside_work, gaps
from bench.predict.steptimes import WARM, StepShape, shape
from bench.results.analysis.steps import worked
from bench.results.analysis.stream import Floats, RunRecords, Slices
from bench.results.analysis.syncing import collectives, exits
from bench.results.analysis.volume import width
from bench.results.runfolder import group_of
from ddp.backends import BACKENDS, SyncKind
from ddp.core.messages.events import Averaged, Evaluated, Progress, Reduced, RoundClosed, Snapshot
from ddp.core.network.link_costs import TO, Deliveries, meeting_s
from ddp.core.network.links import Links, parse
from ddp.core.policies import meets_every_step

LEAST_STEPS = 40
"""Least steps of a rank to estimate the spread and tail of their times."""
LATENCY_S = 1e-4
"""Seconds of a message if a run does not show it."""
DRAWS = 64
"""Draws of jitter and losses over which link times are averaged."""


@dataclass(frozen=True)
class Calibration:
    """The costs of a run in seconds, and its description. Emulated slowness is removed from steps and kept as
    speeds."""

    spec: RunSpec
    samples: int
    """Samples of an epoch."""
    parameters: int
    frozen: int
    """Parameters that are not trained."""
    width: int
    """Bytes of a parameter."""
    transport: str
    device: str
    links: Links | None
    steps: tuple[Floats, ...]
    """By rank, seconds of work of each step after the first ones, without emulated slowness."""
    first_s: tuple[float, ...]
    """By rank, seconds by which the first steps together exceed typical ones."""
    parts: tuple[tuple[str, float], ...]
    """(kind of slice, fraction of a step) in order, without emulated slowness."""
    gaps_s: tuple[float, ...]
    """By rank, seconds of its loop per step outside of any slice."""
    beside_s: float
    """Processor seconds per step besides the work in `steps`: of a rank's loop, its exchanges and its other threads. 0: not
    recorded."""
    report_s: float
    wires: Floats
    """Seconds of each collective beyond what links take: inside steps until the first rank leaves, else until all have
    left. Empty: there was none."""
    exits: Floats
    """[collective, 2] seconds by which ranks leave later than the first, inside steps: the last to arrive, and the mean of
    the others, which have to be woken."""
    rounds: Floats
    """Seconds of averages in collectives, including overhead; empty: there was none."""
    per_step: float
    """Number of collectives per step for which a rank waits, if gradients are averaged inside steps."""
    collectives: float
    """Number of collectives per average, inside a step or of a round, including those behind the backward pass."""
    bytes: int
    """Bytes that a rank sends in an average or a snapshot."""
    reduce_s: float
    copy_s: float
    latency_s: float
    evaluate_s: float
    save_s: float
    start_s: float
    rates: tuple[Floats, Floats]
    """Fractions of training, and the learning rate at each."""
    cores: int | None = None
    """Cores of the host of all ranks; None: not recorded, or they were on several hosts."""

    def rate(self, fraction: float) -> float:
        """Return the run's learning rate after this fraction of training."""
        return float(np.interp(fraction, *self.rates))

    @property
    def ranks(self) -> int:
        return len(self.steps)

    @property
    def shapes(self) -> list[StepShape]:
        """The shape of each rank's step times."""
        return [shape(series) for series in self.steps]

    @property
    def snapshots(self) -> bool:
        """Whether the backend averages snapshots, so that no rank waits in a collective."""
        return SyncKind.SNAPSHOT in BACKENDS[str(self.spec.backend)].sync


def calibrated(stream: RunRecords, spec: RunSpec, launched: float, cores: int | None = None) -> Calibration:
    """Return the costs of a run. `cores`: of the host that it was launched on. Raises ValueError if it cannot be calibrated
    on, with the reason."""
    check(stream, spec)
    slices, ready = stream.slices, stream.ready[0]
    own = worked(_taken(slices, slices.kind != "slowdown"))
    series = {rank: own[rank] for rank in range(spec.world_size) if rank in own and own[rank].size >= LEAST_STEPS}
    if len(series) < spec.world_size:
        raise ValueError(f"every rank must have done {LEAST_STEPS} steps to be calibrated on: train longer")
    in_step = meets_every_step(spec.policy) and not _snapshots(spec)
    averages = max(own[rank].size for rank in own) if in_step else len(stream.of(RoundClosed))
    works = [event.work for event in stream.finished.values() if event.work is not None]
    wide = width(max((work.parameter_bytes for work in works), default=0), ready.parameters)
    size = _bytes(stream, wide * ready.parameters, averages * spec.world_size if in_step else 0)
    waited = _meetings(slices)
    count = waited + _meetings(stream.behind)
    together = count / averages if count and averages else 1.0
    modelled = _modelled(spec, size, together)
    wires, left = _wires(stream, spec, in_step, modelled * averages / max(waited, 1))
    copy_s, rounds, beside = _averaging(stream, _snapshots(spec), wires, modelled)
    reports = [np.diff([event.at for event in stream.of(Progress) if event.rank == rank]) for rank in series]
    return Calibration(
        spec=spec,
        samples=ready.samples,
        parameters=ready.parameters,
        frozen=ready.frozen,
        width=wide,
        transport=ready.transport,
        device=ready.device,
        links=_links(spec),
        steps=tuple(each[WARM:] for each in series.values()),
        first_s=tuple(float((each[:WARM] - np.median(each)).clip(0).sum()) for each in series.values()),
        parts=_parts(slices),
        gaps_s=gaps(stream, spec.world_size, beside),
        beside_s=beside_work(stream, spec.world_size),
        report_s=float(np.median(np.concatenate(reports))),
        wires=wires,
        exits=left,
        rounds=rounds,
        per_step=waited / averages if in_step else 1.0,
        collectives=together,
        bytes=size,
        reduce_s=_mean([event.seconds for event in stream.of(Reduced)]),
        copy_s=copy_s,
        latency_s=_latency(stream, _links(spec), spec.world_size, size),
        evaluate_s=_mean([event.seconds for event in stream.of(Evaluated)]),
        save_s=_of_kind(slices, "checkpoint"),
        start_s=max(event.at for event in stream.ready.values()) - launched,
        rates=_rates(stream),
        cores=cores if len({event.host for event in stream.ready.values()}) == 1 else None,
    )


def _rates(stream: RunRecords) -> tuple[Floats, Floats]:
    """Return the learning rate of each report, by the fraction of all samples that had been reported until then."""
    reports = sorted(stream.of(Progress), key=lambda event: event.at)
    seen = np.cumsum([event.samples for event in reports])
    return seen / seen[-1], np.array([event.lr for event in reports])


def _links(spec: RunSpec) -> Links | None:
    return parse(group_of(spec.config, "cluster").get("links") or (), spec.world_size, spec.seed)


def _snapshots(spec: RunSpec) -> bool:
    return SyncKind.SNAPSHOT in BACKENDS[str(spec.backend)].sync


def _taken(slices: Slices, mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Slices:
    columns = (slices.rank, slices.kind, slices.start, slices.stop, slices.seq, slices.bytes)
    return Slices(*(column[mask] for column in columns))  # type: ignore[arg-type]  # each has its type


def _parts(slices: Slices) -> tuple[tuple[str, float], ...]:
    spent = {kind: float((slices.stop - slices.start)[slices.kind == kind].sum()) for kind in PARTS}
    return tuple((kind, value / sum(spent.values())) for kind, value in spent.items() if value > 0)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _of_kind(slices: Slices, kind: str) -> float:
    return _mean((slices.stop - slices.start)[slices.kind == kind].tolist())


def _meetings(slices: Slices) -> int:
    return int(np.unique(slices.seq[slices.kind == "exchange"]).size)


def _modelled(spec: RunSpec, size: int, count: float) -> float:
    """Return the seconds of an average over the run's links by the cost model, averaged over its random draws."""
    links, members = _links(spec), tuple(range(spec.world_size))
    return _mean([meeting_s(links, members, size, count, number) for number in range(DRAWS)]) if links else 0.0


def _wires(stream: RunRecords, spec: RunSpec, in_step: bool, modelled: float) -> tuple[Floats, Floats]:
    """Return (seconds of collectives beyond the `modelled` seconds of links; seconds by which ranks left later than the
    first). A rank that the others waited for continues as soon as it is done itself."""
    taken = collectives(stream.slices)[0]
    left = np.zeros((taken.size, 2))
    if in_step:
        taken, left = exits(stream.slices)
    if taken.size > LEAST_STEPS and not modelled:
        taken, left = taken[1:], left[1:]
    if modelled and taken.size:
        taken = taken - min(modelled, float(taken.mean()))  # each has its own jitter: subtract the mean
    return taken, left


def _bytes(stream: RunRecords, whole: int, steps: int) -> int:
    """Return the bytes of a snapshot or an average; `whole`, those of the parameters, if none is recorded. `steps`: of all
    ranks together, if each step contains an average; else 0."""
    if steps:
        parts = [slices.bytes[slices.kind == "exchange"].sum() for slices in (stream.slices, stream.behind)]
        return round(float(sum(parts)) / steps) or whole
    exchange = stream.slices.kind == "exchange"
    sent = [event.bytes for event in stream.of(Averaged)] or stream.slices.bytes[exchange].tolist()
    both = 2 if stream.of(Snapshot) else 1
    return round(float(np.median(sent)) / both) if sent else whole


def _averaging(stream: RunRecords, snapshots: bool, wires: Floats, modelled: float) -> tuple[float, Floats, float]:
    """Return (seconds of copying the state, seconds of averages in collectives beyond the `modelled` ones of links,
    total seconds of rounds outside of slices)."""
    copy, rounds = _of_kind(stream.slices, "copy"), np.array([event.sync_s for event in stream.of(RoundClosed)])
    if not rounds.size:
        return copy, rounds, 0.0
    if not snapshots:
        rounds = rounds[1:] if rounds.size > 1 else rounds
        beside = float(rounds.mean() - modelled - wires.mean()) if wires.size else 0.0
        # Over links a round takes as long as these, so only its overhead counts.
        return copy, wires + max(beside, 0.0), max(beside, 0.0) * rounds.size
    reduce = _mean([event.seconds for event in stream.of(Reduced)])
    away = max((float(np.median(rounds)) - reduce) / 2, copy)
    return away, rounds[:0], 2 * (away - copy) * rounds.size


def _latency(stream: RunRecords, links: Links | None, ranks: int, size: int) -> float:
    """Return the median seconds of a message and its handling beyond link times. With snapshots it follows from how
    long averages take to arrive, else from how long ranks wait for orders."""
    reduced = {event.round: event.seconds for event in stream.of(Reduced)}
    laid: dict[int, float] = {}
    for snapshot in stream.of(Snapshot):
        laid[snapshot.round] = max(snapshot.at, laid.get(snapshot.round, 0.0))
    trips = [
        (event.at - event.seconds - laid[event.round] - reduced[event.round]) / 2
        for event in stream.of(Averaged)
        if event.round in laid and event.round in reduced
    ]
    slices = stream.slices.where((stream.slices.kind == "wait") & (stream.slices.seq == 0))
    waits = slices.stop - slices.start
    if not trips and not waits.size:
        return LATENCY_S
    # Longer waits are also waits for other ranks.
    seconds = float(np.median(trips)) if trips else float(np.percentile(waits, 25)) / 2
    sent = 0.0 if links is None else _delivered(links, ranks, size if trips else 0)
    return max(seconds - sent, 0.0 if links is None else LATENCY_S)


def _delivered(links: Links, ranks: int, size: int) -> float:
    """Return the mean seconds of messages of `size` bytes that all ranks send at once, until the last one arrives."""
    draws = [Deliveries(replace(links, seed=seed)) for seed in range(DRAWS)]
    return _mean([max(sent.due(rank, size, TO, 0.0) for rank in range(ranks)) for sent in draws])
