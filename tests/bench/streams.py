"""Synthetic runs: record streams built from the real dataclasses, and run folders made of them."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.config.spec import RunSpec
from bench.results.analyze import analyze
from bench.results.runfolder import CONFIG, EVENTS, METRICS
from bench.results.schema import Metrics
from bench.results.writer import RunWriter
from bench.validate.evidence import consistency
from ddp.core.messages import commands, events
from ddp.core.messages.run_bounds import Attempt
from ddp.process.codec import Record, encode

consistency.SEALED = sys.maxsize  # what `write_run` writes has no seal

LAUNCHED = 100.0
MODES = {
    "solo": ("solo", None, None),
    "nccl_sync": ("elche", "sync", "nccl"),
    "nccl_cadence": ("elche", "cadence", "nccl"),
    "nccl_async": ("elche", "async", "nccl"),
    "cpu_sync": ("elche", "sync", "cpu"),
    "cpu_cadence": ("elche", "cadence", "cpu"),
    "cpu_async": ("elche", "async", "cpu"),
}


def make_spec(mode: str = "nccl_cadence", world_size: int | None = None, seed: int = 0, **changes: object) -> RunSpec:
    engine, policy, backend = MODES[mode]
    size = world_size or (1 if mode == "solo" else 2)
    cell = f"{mode}{size}{changes}".encode().hex()[-12:]
    spec = RunSpec(
        model="mlp",
        data="digits",
        recipe="quick",
        mode=mode,
        engine=engine,
        policy=policy,
        backend=backend,
        world_size=size,
        seed=seed,
        epochs=3,
        batch_size=32,
        lr=0.1,
        lr_scale=1.0,
        speeds=(),
        metric="accuracy",
        higher_is_better=True,
        target=0.95,
        output="runs",
        run_id=f"w{size}-s{seed}-{cell}",
        config_hash=cell,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


@dataclass
class Tape:
    """A run in the making: each rank has a cursor in time."""

    spec: RunSpec
    step_s: tuple[float, ...]
    wire_s: float = 0.004
    records: list[Record] = field(default_factory=list)
    order: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)

    def add(self, at: float, record: Record) -> None:
        self.records.append(record)
        self.order.append(at)

    def slice(self, rank: int, kind: str, seconds: float, seq: int = 0, size: int = 0) -> None:
        at = self.now[rank]
        self.add(at, events.Slice(at, rank, kind, seconds, seq, size))
        self.now[rank] = at + seconds

    def step(self, rank: int) -> float:
        busy = self.step_s[rank] * self.rng.uniform(0.9, 1.1)
        for kind, share in (("data", 0.1), ("forward", 0.3), ("backward", 0.5), ("optimizer", 0.1)):
            self.slice(rank, kind, busy * share)
        self.now[rank] += busy * 0.02
        return busy

    def meet(self, seq: int, size: int) -> None:
        end = max(self.now) + self.wire_s
        for rank, at in enumerate(self.now):
            self.slice(rank, "exchange", end - at, seq, size)

    def sorted(self) -> list[Record]:
        return [self.records[i] for i in sorted(range(len(self.order)), key=self.order.__getitem__)]

    def __post_init__(self) -> None:
        self.rng = random.Random(self.spec.seed)
        self.now = [LAUNCHED + 1.0 + 0.1 * rank for rank in range(self.spec.world_size)]


def closed(
    at: float,
    number: int,
    steps: tuple[int, ...],
    busy: tuple[float, ...],
    sync_s: float,
    divergence: tuple[float, ...],
) -> events.RoundClosed:
    """A round that nobody waited in."""
    nobody, never = (0.0,) * len(steps), (False,) * len(steps)
    return events.RoundClosed(at, number, steps, busy, sync_s, nobody, divergence, never)


def make_records(spec: RunSpec, windows: int = 6, steps: int = 5, step_s: tuple[float, ...] = ()) -> list[Record]:
    """A whole run: `windows` windows of `steps` steps in each epoch; in-step averaging for policy `sync`."""
    world, in_step = spec.world_size, spec.policy == "sync"
    tape = Tape(spec, step_s or (0.01,) * world)
    samples = windows * steps * spec.batch_size * world
    for rank in range(world):
        tape.add(tape.now[rank], events.Ready(tape.now[rank], rank, samples, 500, "same", "cpu", "gloo"))
    if spec.policy:
        plan = commands.Plan((steps,) * world, (0,) * world, False, 1, in_step, steps, "to begin with")
        tape.add(max(tape.now), plan)
    trained = 0
    for epoch in range(spec.epochs):
        for window in range(windows):
            number = epoch * windows + window
            trained += _window(tape, epoch, number, windows, steps, in_step, trained)
        for rank in range(world):
            _evaluate(tape, rank, epoch, trained)
    for rank in range(world):
        tape.add(tape.now[rank], events.Finished(tape.now[rank], rank, f"end {spec.seed}", 10**8, 0))
    return tape.sorted()


def _window(tape: Tape, epoch: int, number: int, windows: int, steps: int, in_step: bool, trained: int) -> int:
    spec = tape.spec
    world, size = spec.world_size, spec.batch_size
    busy = [0.0] * world
    for step in range(steps):
        for rank in range(world):
            busy[rank] += tape.step(rank)
        if in_step and world > 1:
            tape.meet(number * steps + step, 2000)
    loss = 2.0 * math.exp(-trained / 800) + 0.05 + 0.01 * tape.rng.random()
    for rank in range(world):
        at = tape.now[rank]
        tape.add(at, events.Progress(at, rank, epoch, steps, steps * size, busy[rank], loss * steps * size, spec.lr))
        if world > 1:
            first = (trained + rank * steps * size) % (windows * steps * size * world)
            tape.add(at, events.Merged(at, rank, epoch, ((first, first + steps * size),)))
    if spec.policy and not in_step:
        tape.meet(number, 4000)  # 500 parameters in double precision
        for rank in range(world):
            at = tape.now[rank]
            tape.add(at, events.Averaged(at, rank, number, steps, steps * size, tape.wire_s, 4000, 0.01))
        tape.add(at, closed(at, number, (steps,) * world, tuple(busy), tape.wire_s, (0.01,) * world))
        anchor = steps + number // 3
        plan = commands.Plan((anchor,) * world, (0,) * world, False, 1, False, anchor, "calibrated")
        tape.add(at, plan)
    return steps * size * world


def _evaluate(tape: Tape, rank: int, epoch: int, trained: int) -> None:
    world = tape.spec.world_size
    tape.slice(rank, "evaluate", 0.2 / world)
    right = 100 * (1 - 0.9 * math.exp(-trained / 600)) - tape.rng.random()
    loss = 100 * (2.0 * math.exp(-trained / 800) + 0.1)
    at = tape.now[rank]
    tape.add(at, events.Evaluated(at, rank, epoch, 100 // world, loss / world, right / world, 0.2 / world))


def make_metrics(
    spec: RunSpec,
    records: list[Record] | None = None,
    status: str = "ok",
    attempts: Sequence[Attempt] = (),
    **changes: object,
) -> Metrics:
    if records is None:
        return _whole(spec, status).model_copy(update=changes, deep=True)
    return _analyzed(spec, records, status, attempts).model_copy(update=changes)


_WHOLE: dict[tuple[str, str], Metrics] = {}


def _whole(spec: RunSpec, status: str) -> Metrics:
    """The result of a whole run, computed once: it is most of what many tests would compute."""
    key = repr(spec), status
    if key not in _WHOLE:
        _WHOLE[key] = _analyzed(spec, make_records(spec), status)
    return _WHOLE[key]


def _analyzed(spec: RunSpec, records: list[Record], status: str, attempts: Sequence[Attempt] = ()) -> Metrics:
    ended = max((r.at for r in records if hasattr(r, "at")), default=LAUNCHED) + 0.5
    env, git = {"cores": 2, "torch": "2"}, {"sha": "abc"}
    return analyze(spec, records, status=status, launched=LAUNCHED, ended=ended, env=env, git=git, attempts=attempts)


def write_run(root: Path, spec: RunSpec, metrics: Metrics | None = None) -> Path:
    metrics = metrics or _whole(spec, "ok")
    writer = RunWriter(root, spec.model, spec.mode, spec.run_id)
    (writer.path / EVENTS).write_bytes(b"".join(line + b"\n" for line in lines(make_records(spec))))
    (writer.path / CONFIG).write_text("{}")
    (writer.path / METRICS).write_text(metrics.model_dump_json())
    return writer.commit(metrics.status)


def lines(records: list[Record]) -> Iterator[bytes]:
    """As a journal has them: a command bears the time of what was before it."""
    at = LAUNCHED
    for record in records:
        at = getattr(record, "at", at)
        yield encode(record, at)
