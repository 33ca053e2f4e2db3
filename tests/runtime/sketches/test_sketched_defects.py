"""Defects put into the engine of whole runs: the check that is to see each one says what, where and by how much."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.backends import allreduce, snapshot
from ddp.core.settings.averaging import Averaging
from ddp.engine import loop
from ddp.gradients import average, step_gradients
from ddp.replica.memory import buffers
from ddp.replica.memory.flat import swapped
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.sketches.judged import failures
from tests.runtime.sketches.test_sketched_runs import task

pytestmark = pytest.mark.usefixtures("in_process", "every_step")

Defect = Callable[[pytest.MonkeyPatch], None]


def around(owner: Any, name: str, broken: Callable[..., Any]) -> Defect:
    """`broken(original, self, *arguments)` in place of a method, `original` bound."""

    def put(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda self, *a, **k: broken(partial(original, self), self, *a, **k))

    return put


def swap(values: torch.Tensor, size: int = 8) -> None:
    first = values[:size].clone()
    values[:size] = values[size : 2 * size]
    values[size : 2 * size] = first


def slices_swapped(take: Any, self: Any) -> Any:
    swap(self._wire[0])
    return take()


def half_left_out(take: Any, self: Any) -> Any:
    values = self._sections[0].values
    kept = values[values.numel() // 2 :].clone()
    found = take()
    values[values.numel() // 2 :] = kept
    return found


def stale_average(take: Any, self: Any) -> Any:
    now = self._wire[0].clone()
    self._wire[0].copy_(getattr(self, "before", now))
    self.before = now
    return take()


def no_buffers(prepare: Any, self: Any) -> None:
    prepare()
    kept = [k for k, section in enumerate(self._sections) if section.kind != "buffers"]
    for name in ("_sections", "_outer", "_last"):
        setattr(self, name, [getattr(self, name)[k] for k in kept])


def optimizer_lost(average: Any, self: Any, *order: Any) -> Any:
    found = average(*order)
    self.loop.replica.optimizer.state.clear()
    return found


def optimizer_lost_in_flight(apply: Any, self: Any, *order: Any, **exact: Any) -> Any:
    found = apply(*order, **exact)
    for state in self._loop.replica.optimizer.state.values():
        state["momentum_buffer"].zero_()
    return found


def coarse(copy: Any, self: Any, order: Any) -> Any:
    before = copy(order)
    for laid in self._snapshot:
        if laid.is_floating_point():
            laid.copy_(laid.bfloat16())
    return before


def torn(copy: Any, self: Any, order: Any) -> Any:
    old = [laid.clone() for laid in self._snapshot]
    before = copy(order)
    for laid, was in zip(self._snapshot, old, strict=True):
        laid[: laid.numel() // 2].copy_(was[: laid.numel() // 2])
    return before


def old_evaluated(averaged_weights: Any, self: Any, exact: bool) -> Any:
    now = [(own, mean.clone()) for own, mean in self._pairs()]
    old = getattr(self, "old", now)
    self.old = now
    return swapped([(own, mean) for (own, _), (_, mean) in zip(now, old, strict=True)])


def trained_on(evaluate: Any, self: Any, *order: Any) -> Any:
    found = evaluate(*order)
    with torch.no_grad():
        self.replica.state.sections[0].values[3] += 1e-3
    return found


def frozen_on(*ranks: int) -> Callable[..., None]:
    """The optimizer of these ranks does not move the head's bias."""

    def broken(make: Any, self: Any, job: Any, rank: int, *more: Any, **named: Any) -> None:
        make(job, rank, *more, **named)
        if rank in ranks:
            bias = self.replica.model.head.bias
            for group in self.replica.optimizer.param_groups:
                group["params"] = [p for p in group["params"] if p is not bias]

    return broken


def no_gradient(exchange: Any, self: Any, batch: Any) -> None:
    if self._collectives.transport.config.rank == 1:
        for p in self._state.parameters:
            if p.grad is not None and p.shape == (2,):
                p.grad.zero_()
    exchange(batch)


def own_gradients(exchange: Any, self: Any, batch: Any) -> None:
    own = [None if p.grad is None else p.grad.clone() for p in self._state.parameters]
    unpack = self._gradients.unpack

    def unpacked() -> None:
        unpack()
        for parameter, values in zip(self._state.parameters, own, strict=True):
            if values is not None and parameter.dim() == 2:
                parameter.grad.copy_(values)

    self._gradients.unpack = unpacked
    exchange(batch)
    self._gradients.unpack = unpack


NCCL, CPU = allreduce.Backend, snapshot.Backend
DEFECTS: dict[str, tuple[str, str, Defect, str, str]] = {
    "slices swapped": ("cadence", "nccl", around(NCCL, "_take", slices_swapped), "average", "body.0.weight: weighted"),
    "half left out": ("cadence", "nccl", around(NCCL, "_take", half_left_out), "average", "the average is not"),
    "stale": (
        "cadence",
        "nccl",
        around(NCCL, "_take", stale_average),
        "average",
        "round 1, rank 0: the average is not",
    ),
    "no buffers": ("cadence", "nccl", around(NCCL, "_prepare_average", no_buffers), "average", "running_"),
    "doubly weighted": (
        "cadence",
        "nccl",
        around(Averaging, "weight", lambda weight, self, samples: float(samples**2)),
        "average",
        "the average is not the weighted mean",
    ),
    "optimizer lost": (
        "cadence",
        "nccl",
        around(NCCL, "average", optimizer_lost),
        "average",
        "had momentum_buffer before the average and has",
    ),
    "optimizer lost in flight": (
        "async",
        "cpu",
        around(CPU, "apply", optimizer_lost_in_flight),
        "average",
        "optimizer.momentum_buffer: weighted sum 0, expected",
    ),
    "coarse": ("async", "cpu", around(CPU, "snapshot", coarse), "average", "the average is not the weighted mean"),
    "torn": ("async", "cpu", around(CPU, "snapshot", torn), "average", "the average is not the weighted mean"),
    "own model evaluated": (
        "async",
        "cpu",
        around(CPU, "averaged_weights", lambda averaged_weights, self, exact: nullcontext()),
        "evaluation",
        "evaluated different models",
    ),
    "old average evaluated": (
        "async",
        "cpu",
        around(CPU, "averaged_weights", old_evaluated),
        "evaluation",
        "the evaluated model is not the average of round",
    ),
    "another model at the end": (
        "sync",
        "nccl",
        around(loop.TrainingLoop, "evaluate", trained_on),
        "evaluation",
        "rank 0 ended with another model than the one evaluated last (body.0.weight",
    ),
    "frozen on a rank": (
        "cadence",
        "nccl",
        around(loop.TrainingLoop, "__init__", frozen_on(1)),
        "idle",
        "rank 1: head.bias did not move in",
    ),
    "frozen": (
        "cadence",
        "cpu",
        around(loop.TrainingLoop, "__init__", frozen_on(0, 1)),
        "idle",
        "head.bias has gradients, but its final value equals its initial value",
    ),
    "no gradient of a layer": (
        "sync",
        "nccl",
        around(average.GradientAverage, "exchange", no_gradient),
        "idle",
        "gradients of head.bias are zero, but not those of rank 0",
    ),
    "own gradients": (
        "sync",
        "nccl",
        around(average.GradientAverage, "exchange", own_gradients),
        "average",
        "exchange 0, rank 0: the result is not the weighted mean of the ranks' values",
    ),
    "gradients summed": (
        "sync",
        "zero1",
        around(step_gradients.StepGradients, "pack", lambda pack, self, weight, **more: pack(1.0)),
        "average",
        "the parts that ranks own do not add up to the weighted mean",
    ),
    "buffers kept": (
        "sync",
        "zero2",
        around(buffers.BufferChanges, "take", lambda take, self: self.rebase()),
        "average",
        "body.1.running_",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_named(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    policy, backend, put, check, line = DEFECTS[name]
    put(monkeypatch)
    played = play(policy, backend, task, options=toy.short_windows(policy), epochs=3)
    monkeypatch.undo()
    found = failures(tmp_path, played, policy)
    assert check in found, found
    assert line in found[check]
    assert found[check].startswith("seed 0")
