"""Local steps between averages: a rank's part with the real backend, and the same in plain PyTorch, rank by rank.

Ranks do unequal numbers of steps in a window, and one more before the average arrives, if the backend does not block.
This module proves what an average is. The length of a window belongs to the policy, and `bench replay` proves that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.prove.entrants import ProofEntry, against, fingerprint, job_of
from bench.prove.oracle import OracleCourse, PlainTrainer, State, summed
from ddp.backends import BACKENDS, SyncKind
from ddp.backends.base import load, reducing
from ddp.core.messages.commands import Average, Join, Reduce
from ddp.core.samples.spans import Batch
from ddp.engine.loop import TrainingLoop

STRIDE = 3
"""Batches of the data that a rank's window may use, with the one `beyond` it."""
DEADLINE_S = 120.0
"""Seconds that ranks wait for each other."""


def window(course: OracleCourse, number: int, rank: int) -> list[Batch]:
    """Return the batches that a rank trains before an average: one or two, so that neighbouring ranks differ."""
    start = _first(course, number, rank)
    count = 1 + (number + rank) % 2
    return [_batch(start + k * course.batch, course.batch) for k in range(count)]


def beyond(course: OracleCourse, number: int, rank: int) -> Batch:
    """Return the batch that a rank trains while the average of a window is computed."""
    return _batch(_first(course, number, rank) + (STRIDE - 1) * course.batch, course.batch)


def _first(course: OracleCourse, number: int, rank: int) -> int:
    """Return the first position of a rank's window."""
    return STRIDE * (number * course.world_size + rank) * course.batch


def _batch(start: int, samples: int) -> Batch:
    return Batch(0, start, start + samples, samples)


def follow_windows(entry: ProofEntry, scratch: Path, rank: int) -> dict[str, Any]:
    """Train one rank's windows; return mean losses of its steps by window, and digests and differences after every
    average."""
    course, spec = entry.course, BACKENDS[entry.entrant.engine]
    job, members = job_of(entry, scratch), tuple(range(course.world_size))
    loop = TrainingLoop(job, rank, lambda event: None)
    backend: Any = load(entry.entrant.engine)(job, rank, loop)
    if SyncKind.SNAPSHOT not in spec.sync:
        backend.join(Join(rank, 0, members, True, "proof"))
    losses, digests, apart = [], [], []
    with _reducer(entry, scratch, rank) as reduce:
        for number in range(course.steps):
            batches = window(course, number, rank)
            steps = [loop.replica.step(batch, course.seen(number))[0] for batch in batches]
            samples = sum(batch.samples for batch in batches)
            order = Average(rank, number, members, True, "proof")
            if SyncKind.SNAPSHOT in spec.sync:
                backend.snapshot(order)
                (scratch / f"laid-{number}-{rank}").write_text(str(samples), encoding="utf-8")
                last = number == course.steps - 1
                if not last:
                    steps.append(loop.replica.step(beyond(course, number, rank), course.seen(number))[0])
                reduce(number)
                backend.apply(number, last)
            else:
                backend.average(order, samples)
            losses.append(sum(float(loss.detach()) for loss in steps if loss is not None) / len(steps))
            state = loop.replica.model.state_dict()
            digests.append(fingerprint(state))
            assert entry.truth is not None
            apart.append(against(state, digests[-1], entry.truth, f"{number}-{rank}"))
    backend.close()
    loop.replica.close()
    return {"losses": losses, "digests": digests, "apart": apart, "unshards": True, "state": {}}


class _Reducing:
    """Waits for the average of a window; on the first rank it also requests the average, as the coordinator does."""

    def __init__(self, scratch: Path, ranks: int) -> None:
        self._scratch, self._ranks = scratch, ranks
        self._done = threading.Event()
        self._error: Exception | None = None
        self.submit: Callable[[Reduce], None] | None = None

    def finish(self, event: Any) -> None:
        """Note that the reducer is done, or with which error it failed."""
        self._error = event if isinstance(event, Exception) else None
        self._done.set()

    def __call__(self, number: int) -> None:
        laid = [self._scratch / f"laid-{number}-{rank}" for rank in range(self._ranks)]
        ready = self._scratch / f"reduced-{number}"
        if self.submit is not None:
            _await(lambda: all(path.exists() and path.stat().st_size for path in laid))
            self._done.clear()
            samples = tuple(int(path.read_text(encoding="utf-8")) for path in laid)
            self.submit(Reduce(number, tuple(range(self._ranks)), samples, "proof"))
            self._done.wait(DEADLINE_S)
            if self._error is not None:
                raise self._error
            ready.touch()
        _await(ready.exists)


@contextmanager
def _reducer(entry: ProofEntry, scratch: Path, rank: int) -> Iterator[_Reducing]:
    """Yield the object that waits for averages."""
    waiting = _Reducing(scratch, entry.course.world_size)
    if rank or SyncKind.SNAPSHOT not in BACKENDS[entry.entrant.engine].sync:
        yield waiting
        return
    with reducing(job_of(entry, scratch), waiting.finish) as reducer:
        assert reducer is not None
        waiting.submit = reducer.submit
        yield waiting


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("another rank does not come")
        time.sleep(0.001)


def replay_windows(course: OracleCourse, goes_on: bool) -> Iterator[tuple[list[float], list[State]]]:
    """Play the windows of all ranks in plain PyTorch; yield each rank's mean loss and state after each average.
    `goes_on`: ranks train one more batch before the average arrives, and apply it as a difference."""
    ranks = [PlainTrainer(course) for _ in range(course.world_size)]
    for number in range(course.steps):
        losses, weights, snapshots, work = [], [], [], []
        for rank, plain in enumerate(ranks):
            batches = window(course, number, rank)
            losses.append([_step(plain, batch, course.seen(number)) for batch in batches])
            weights.append(float(sum(batch.samples for batch in batches)))
            snapshots.append(_copy(plain))
            work.append(len(batches))
        mean = _mean(snapshots, weights)
        last = number == course.steps - 1
        for rank, plain in enumerate(ranks):
            if goes_on and not last:
                losses[rank].append(_step(plain, beyond(course, number, rank), course.seen(number)))
            _take(plain, mean, snapshots[rank] if goes_on and not last else None)
        yield [sum(each) / len(each) for each in losses], [plain.model.state_dict() for plain in ranks]


def _step(plain: PlainTrainer, batch: Batch, seen: float) -> float:
    plain.schedule(seen)
    loss, passes = plain.passes(batch)
    plain.step(summed(passes))
    return loss


def _copy(plain: PlainTrainer) -> State:
    return {name: value.clone() for name, value in plain.model.state_dict().items()}


def _mean(states: list[State], weights: list[float]) -> State:
    """Return the mean weighted by samples, rounded once; counters take the maximum."""
    mean: State = {}
    for name, first in states[0].items():
        values = [state[name] for state in states]
        if not first.is_floating_point():
            mean[name] = torch.stack(values).amax(dim=0)
            continue
        total = values[0].double() * weights[0]
        for value, weight in zip(values[1:], weights[1:], strict=True):
            total = total + value.double() * weight
        mean[name] = (total / sum(weights)).to(first.dtype)
    return mean


@torch.no_grad()
def _take(plain: PlainTrainer, mean: State, snapshot: State | None) -> None:
    """Copy the mean into the model; with a `snapshot`, add the difference between mean and snapshot instead, but to
    floating-point buffers only if none without negative values gets one."""
    buffers = {name: value for name, value in plain.model.named_buffers() if value.is_floating_point()}
    below = snapshot is not None and any(
        bool(torch.minimum(value, mean[name]).min() >= 0 > (value - (snapshot[name] - mean[name])).min())
        for name, value in buffers.items()
        if name in mean and value.numel()
    )
    seen: set[int] = set()
    for name, value in plain.model.state_dict().items():
        if value.data_ptr() in seen and value.numel():
            continue  # shares memory with another tensor
        seen.add(value.data_ptr())
        if snapshot is None or (below and name in buffers):
            value.copy_(mean[name])
        elif value.dtype is torch.bool:
            value.logical_or_(mean[name])
        else:
            value.sub_(snapshot[name] - mean[name])
