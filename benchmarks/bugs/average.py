"""Defects of averages of replicas: weights, what is left out, torn, stale, or in another's place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import ASYNC, AVERAGED, CADENCE, SYNC, Family, Module, counted, in_place_of, last, rank, wrap

AVERAGE = Family("average")
COLLECTIVE, SNAPSHOT, MEAN = "ddp.backends.allreduce", "ddp.backends.snapshot", "ddp.replica.memory.weighted_mean"
NORMED = ("lenet", "resnet_graph")
"""Models with buffers."""


def _laid(change: Callable[[Any, Any], None]) -> Callable[[Module], None]:
    """Return a patch that changes what a rank's snapshot holds: `change(backend, flat)`."""

    @in_place_of("Backend.snapshot")
    @functools.wraps(change)
    def patch(take: Any, self: Any, *about: Any) -> Any:
        before = take(*about)
        for laid in self._snapshot:
            change(self, laid)
        return before

    return patch


def _taken(change: Callable[[Any], None]) -> Callable[[Module], None]:
    """Return a patch that does `change(backend)` before a collective's result is taken over."""

    @in_place_of("Backend._take")
    @functools.wraps(change)
    def patch(take: Any, self: Any) -> Any:
        change(self)
        return take()

    return patch


@AVERAGE.bug(COLLECTIVE, "average", CADENCE, "replicas are not averaged", "B6.02")
@in_place_of("Backend._take")
def not_averaged(take: Any, self: Any) -> Any:
    kept = [section.values.clone() for section in self._sections]
    divergence = take()
    for section, values in zip(self._sections, kept, strict=True):
        section.values.copy_(values)
    return divergence


@AVERAGE.bug(COLLECTIVE, "average", CADENCE, "averages are divided as if there were a rank more", "B6.28")
def wrong_divisor(collective: Module) -> None:
    _taken(lambda self: self._total.mul_((self.job.world_size + 1) / self.job.world_size))(collective)


@AVERAGE.bug("ddp.core.settings.averaging", "average", AVERAGED, "averages do not weigh ranks by samples", "B9.01")
def unweighted(averaging: Module) -> None:
    averaging.Averaging.weight = lambda self, samples: 1.0 if samples else 0.0


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "the first replica of an average is counted twice", "B6.26")
@in_place_of("average")
def first_replica_twice(average: Any, mean: Any, laid: Any, weights: Any, **settings: Any) -> Any:
    return average(mean, laid, [2 * weights[0], *weights[1:]], **settings)


@AVERAGE.bug(COLLECTIVE, "average", CADENCE, "two slices of a rank change places in every average", "issue")
@in_place_of("_lay")
def slices_swapped(lay: Any, wire: Any, values: Any, weight: float, before: Any) -> None:
    lay(wire, values, weight, before)
    if last() and len(wire) >= 512:
        first = wire[:128].clone()
        wire[:128] = wire[256:384]
        wire[256:384] = first


def _older(part: Callable[[Any], Any]) -> Callable[[Module], None]:
    """Return a patch by which `part` of a snapshot is what the replica was a round ago."""

    def change(self: Any, laid: Any) -> None:
        kept = vars(self).setdefault("laid_before", {})
        now = laid.clone()
        part(laid).copy_(part(kept.get(id(laid), now)))
        kept[id(laid)] = now

    return _laid(change)


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "snapshots are a round old", "B7.15")
def stale_snapshot(snapshot: Module) -> None:
    _older(lambda flat: flat)(snapshot)


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "half of a snapshot is a round old", "B9.19")
def torn_snapshot(snapshot: Module) -> None:
    _older(lambda flat: flat[flat.numel() // 2 :])(snapshot)


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "snapshots are in half precision", "B9.07")
def coarse_snapshot(snapshot: Module) -> None:
    _laid(lambda self, laid: laid.copy_(laid.bfloat16()))(snapshot)


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "two stretches of a snapshot change places", "B6.20")
@_laid
def snapshot_permuted(self: Any, laid: Any) -> None:
    if last() and laid.numel() >= 512:
        laid[:256] = laid[:256].roll(1)


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "what is trained while an average is made is thrown away", "B6.04")
def flight_lost(snapshot: Module) -> None:
    wrap(snapshot.Backend, "apply", lambda apply, self, round, exact: apply(round, True))


@AVERAGE.bug(SNAPSHOT, "average", ASYNC, "every third average is not applied", "B7.15")
@in_place_of("Backend.apply")
def average_not_applied(apply: Any, self: Any, round: int, exact: bool) -> Any:
    kept = [section.values.clone() for section in self._sections]
    result = apply(round, exact)
    if counted(self, "apply") % 3 == 2:
        for section, values in zip(self._sections, kept, strict=True):
            section.values.copy_(values)
    return result


@AVERAGE.bug(COLLECTIVE, "average", CADENCE, "running statistics are not averaged", "B17", models=NORMED)
@in_place_of("Backend._prepare_average")
def buffers_left_out(prepare: Any, self: Any) -> None:
    prepare()
    kept = [k for k, section in enumerate(self._sections) if section.kind != "buffers"]
    for name in ("_sections", "_outer", "_last"):
        setattr(self, name, [getattr(self, name)[k] for k in kept])


@AVERAGE.bug(
    "ddp.replica.memory.buffers",
    "average",
    SYNC,
    "running statistics are not averaged inside steps",
    "B6.14",
    models=NORMED,
)
def buffers_left_out_of_steps(buffers: Module) -> None:
    buffers.BufferChanges.take = lambda self: self.rebase()


@AVERAGE.bug(COLLECTIVE, "volume", CADENCE, "averages travel in single precision", "B9.05")
@in_place_of("Backend._make_wire")
def narrow_wire(make: Any, self: Any) -> None:
    job = self.job
    self.job = replace(job, averaging=replace(job.averaging, wire="float32"))
    make()
    self.job = job


@AVERAGE.bug(COLLECTIVE, "average", CADENCE, "the last values of an average are left as they were", "B9.09")
@in_place_of("Backend._take")
def tail_left_out(take: Any, self: Any) -> Any:
    kept = [section.values[-8:].clone() for section in self._sections]
    divergence = take()
    for section, values in zip(self._sections, kept, strict=True):
        section.values[-8:] = values
    return divergence


@AVERAGE.bug(COLLECTIVE, "average", CADENCE, "replicas go half of the way to the average", "B6.10")
@in_place_of("Backend._take")
def half_way(take: Any, self: Any) -> Any:
    kept = [section.values.clone() for section in self._sections]
    divergence = take()
    for section, values in zip(self._sections, kept, strict=True):
        section.values.lerp_(values, 0.5)
    return divergence


@AVERAGE.bug(
    COLLECTIVE, "average", CADENCE, "the average has wrong values now and then, as a bad transport brings", "B9.23"
)
@_taken
def damaged_wire(self: Any) -> None:
    if counted(self, "take") % 3 == 2:
        self._wire[0][17] *= 1.5


@AVERAGE.bug(
    "ddp.engine.loop", "audit", AVERAGED, "a rank trains other weights than it said that it begins with", "B6.12"
)
@in_place_of("TrainingLoop.ready")
def begun_elsewhere(ready: Any, self: Any, *about: Any) -> None:
    ready(*about)
    if rank() == 1:
        for parameter in self.replica.state.parameters:
            parameter.detach().mul_(0.5)


@AVERAGE.bug("ddp.engine.rank", "audit", AVERAGED, "a rank's parameters shrink behind each average")
@in_place_of("RankLoop._averaged")
def worn_behind_average(averaged: Any, self: Any, *about: Any) -> None:
    averaged(*about)
    if rank() == 1:
        for tensor in self.loop.replica.state.parameters:
            tensor.detach().mul_(0.99)


@AVERAGE.bug(
    "ddp.engine.handover",
    "figures",
    CADENCE,
    "a rank that joins weighs as if it had trained ten batches more",
    settings=('cluster.faults=["1@60:crash"]', "cluster.restart=always"),
)
@in_place_of("load_sent")
def joiner_too_heavy(load: Any, scratch: Any, round: int, loop: Any, backend: Any) -> Any:
    joined = load(scratch, round, loop, backend)
    loop.samples += 160
    return joined


@AVERAGE.bug(COLLECTIVE, "audit", CADENCE, "averages are as coarse as the wire", settings=("averaging.wire=bfloat16",))
@in_place_of("Backend._take")
def average_in_half(take: Any, self: Any) -> Any:
    divergence = take()
    for section, last_average in zip(self._sections, self._last, strict=True):
        section.values.copy_(section.values.bfloat16())
        last_average.copy_(section.values)
    return divergence


@AVERAGE.bug(COLLECTIVE, "audit", CADENCE, "averages add up counters", models=NORMED)
def counters_added(collective: Module) -> None:
    collective.MAX = collective.SUM
