"""Makes records of a user's own training loop, from what it logs at the end of each epoch and from the graph that it
trains.

Must not know where the records go.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from ddp.core.messages.commands import Evaluate
from ddp.core.messages.events import Evaluated, Progress, Ready
from ddp.monitor.harness import Json, layers
from ddp.monitor.track import RunSubject, RunTrack
from ddp.process.clock import now
from ddp.process.codec import Record

KNOWN = ("loss", "eval", "eval_loss", "lr", "samples")
"""Names that are not recorded as scalars."""


@runtime_checkable
class WatchedGraph(Protocol):
    """The part of a `Graph` that a monitor reads."""

    structural_hash: str

    def replica_devices(self) -> list[str]:
        """Return the device of each replica."""
        ...

    def epoch_samples(self) -> int:
        """Return the number of samples in an epoch; 0 if unknown."""
        ...

    def work(self) -> list[tuple[int, int, float]]:
        """Return (steps, samples, training seconds) of each replica so far."""
        ...

    def lr(self) -> float:
        """Return the learning rate of the first parameter group."""
        ...

    def on_record(self, listener: Callable[[Record, float], None]) -> Callable[[], None]:
        """Call `listener` with every record. Return a function that removes the listener."""
        ...


def subject_of(model: nn.Module | None, epochs: int) -> RunSubject:
    """Return the description of a loop that trains `model`."""
    if model is None:
        return RunSubject("loop", "own", ("cpu",), epochs=epochs)
    settings: dict[str, Any] = {}
    devices = [str(next((p.device for p in model.parameters()), torch.device("cpu")))]
    mode, name = "own", type(model).__name__
    if isinstance(model, WatchedGraph):
        devices, mode = model.replica_devices(), "graph"
        settings = {"structural_hash": model.structural_hash}
        name = getattr(model, "label", None) or name
    return RunSubject(name, mode, tuple(devices), engine=mode, epochs=epochs, settings=settings)


class LoopRun:
    """One run of a user's own loop. Calls `describe` with the layers of the model after its first forward pass."""

    def __init__(self, track: RunTrack, model: nn.Module | None, describe: Callable[[Json], None]) -> None:
        self.track, self._describe = track, describe
        self._graph = model if isinstance(model, WatchedGraph) else None
        self._model = model
        self._ready = False
        self._before = self._work()
        self._ends: list[Callable[[], None]] = []
        if self._graph is not None:
            self._announce()
            self._ends.append(self._graph.on_record(track))
        if model is not None:
            self._ends.append(_first_pass(model, self._picture))

    def _work(self) -> list[tuple[int, int, float]]:
        return self._graph.work() if self._graph is not None else [(0, 0, 0.0)]

    def _announce(self, samples: int = 0, seconds: float = 0.0) -> None:
        """Record that the loop began `seconds` ago."""
        self._ready = True
        at = max(now() - seconds, self.track.launched)
        numbers = sum(p.numel() for p in self._model.parameters()) if self._model is not None else 0
        for rank, device in enumerate(self.track.subject.devices):
            epoch = samples or (self._graph.epoch_samples() if self._graph is not None else 0)
            transport = "memory" if len(self.track.subject.devices) > 1 else "none"
            self.track(Ready(at, rank, epoch, numbers, "", device, transport), at)

    def _picture(self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Trace the layers with a copy of the model and one sample. Errors are ignored: a missing picture must not end the
        loop."""
        try:
            inputs, keywords = (
                tuple(map(_first_sample, args)),
                {key: _first_sample(each) for key, each in named.items()},
            )
            with torch.random.fork_rng(devices=[]):
                other = copy.deepcopy(model).eval()
                graph = layers(other, lambda: other(*inputs, **keywords))
            shown = next((each for each in (*inputs, *keywords.values()) if isinstance(each, torch.Tensor)), None)
        except Exception:
            return
        self._describe({"metric": "eval", "input": [] if shown is None else list(shown.shape[1:]), **graph})

    def log(self, epoch: int, seconds: float, figures: Mapping[str, Any]) -> None:
        """Record the end of an epoch. Raises ValueError for a value that is not a number."""
        numbers = {name: _number(name, value) for name, value in figures.items() if value is not None}
        scalars = {name: value for name, value in numbers.items() if name not in KNOWN}
        lost = {name for name, value in figures.items() if value is None and name not in KNOWN}
        if not self._ready:
            self._announce(int(numbers.get("samples", 0)), seconds)
        after, at = self._work(), now()
        work = [(a - x, b - y, c - z) for (a, b, c), (x, y, z) in zip(after, self._before, strict=True)]
        self._before = after
        if not any(samples for _, samples, _ in work):  # no watched graph: use what the loop logged
            known = int(numbers.get("samples", 0))
            work = [
                (int(known > 0), max(known, 1), seconds)
            ]  # without a step the one sample is a mere weight of the loss
        lr = numbers.get("lr", self._graph.lr() if self._graph is not None else 0.0)
        loss = numbers.get("loss")
        for rank, (steps, samples, busy_s) in enumerate(work):
            total = None if loss is None else _finite(loss * samples)
            own = (
                (*((n, _finite(v), 1) for n, v in scalars.items()), *((n, None, 1) for n in lost)) if rank == 0 else ()
            )
            self.track(Progress(at, rank, epoch, steps, samples, busy_s, total, lr, scalars=tuple(own)), at)
        self._evaluate(epoch, at, numbers)

    def _evaluate(self, epoch: int, at: float, numbers: Mapping[str, float]) -> None:
        """Record that the epoch has ended, with the results of its evaluation if there was one."""
        self.track(Evaluate(0, epoch, 0, 1, in_turn=True, reason="logged"), at)
        loss, metric = (None if value is None else _finite(value) for value in map(numbers.get, ("eval_loss", "eval")))
        samples = int(not {"eval", "eval_loss"}.isdisjoint(numbers))
        self.track(Evaluated(at, 0, epoch, samples, loss, metric, 0.0), at)

    def close(self) -> None:
        """Remove all listeners."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()


def _first_pass(
    model: nn.Module, see: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
) -> Callable[[], None]:
    """Call `see` with the arguments of the model's first forward pass. Return a function that removes the hook."""

    def before(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        handle.remove()
        see(module, args, named)

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    return handle.remove


def _first_sample(value: Any) -> Any:
    return value.detach()[:1] if isinstance(value, torch.Tensor) and value.dim() else value


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one for a tensor of several elements
        pass
    raise ValueError(f"log: {name} is {value!r:.60}; give one number, or leave it out")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
