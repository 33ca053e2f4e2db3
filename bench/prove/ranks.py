"""Trains courses for the oracle, one after another, on rank processes that are started once; and reads their
results."""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import Tensor

from bench.prove.entrants import ProofEntry, against, fingerprint, job_of, shown
from bench.prove.windows import follow_windows
from ddp.backends import BACKENDS, SyncKind
from ddp.backends.base import load, serving
from ddp.core.messages.commands import Join
from ddp.engine.loop import TrainingLoop
from ddp.process import forkserver
from ddp.registries import is_ours


@dataclass
class CourseResult:
    """The results of a course."""

    losses: list[float]
    """Losses of the global batches."""
    digests: list[list[str]]
    """Digests, [rank][step]."""
    state: dict[str, Tensor]
    apart: list[list[float]] = field(default_factory=list)
    """Largest differences from the oracle's states, [rank][step], if these were given."""
    unshards: bool = True
    """Whether gathering the whole model twice gave equal bits, after every step on every rank."""
    sums: list[float] = field(default_factory=list)
    """By rank, the sum of the compared values after the last step."""
    norm: float = 0.0
    """L2 norm of the same values on the first rank."""


def train(entries: Sequence[ProofEntry], folder: Path, preload: tuple[str, ...] = ()) -> None:
    """Train all entries in order, on ranks that are started once; `trained` reads the results."""
    context = forkserver.warm(preload)
    size = max(entry.course.world_size for entry in entries)
    ranks = [context.Process(target=_rank, args=(entries, folder, rank), daemon=True) for rank in range(size)]
    try:
        with forkserver.script_left_alone():
            for process in ranks:
                process.start()
        with ExitStack() as services:
            for number, entry in enumerate(entries):
                if entry.entrant.engine:
                    services.enter_context(serving(job_of(entry, _scratch(folder, number))))
            for process in ranks:
                process.join()
    finally:
        for process in ranks:
            process.kill() if process.pid is not None else None
        for number in range(len(entries)):
            rmtree(_scratch(folder, number), ignore_errors=True)


def _scratch(folder: Path, number: int) -> Path:
    """Return the scratch folder of an entry's ranks."""
    scratch = folder / f"scratch-{number}"
    scratch.mkdir(exist_ok=True)
    return scratch


def failure(number: int, world_size: int, folder: Path) -> str | None:
    """Return the traceback of a rank that failed in this entry or before it, or which rank ended without one; None:
    none failed."""
    missing = [rank for rank in range(world_size) if not (folder / f"trained-{number}-{rank}.pt").exists()]
    if not missing:
        return None
    texts = sorted(folder.glob("failure-*.txt"))
    return texts[0].read_text(encoding="utf-8") if texts else f"rank {missing[0]} ended without an error"


def error_line(text: str) -> str:
    """Return the line of a traceback that names the last error; its message may have many more lines."""
    lines = text.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    after = [line for line in lines[frames[-1] + 1 if frames else 0 :] if line.strip()]
    return after[0] if after else lines[-1]


def trained(number: int, world_size: int, folder: Path) -> CourseResult:
    """Return the results of an entry. Raises AssertionError with the traceback of a rank that failed in it or
    before."""
    problem = failure(number, world_size, folder)
    assert problem is None, problem
    parts = [torch.load(folder / f"trained-{number}-{rank}.pt") for rank in range(world_size)]
    losses = [sum(shares) for shares in zip(*(part["losses"] for part in parts), strict=True)]
    return CourseResult(
        losses,
        [part["digests"] for part in parts],
        parts[0]["state"],
        [part["apart"] for part in parts],
        all(part["unshards"] for part in parts),
        [part.get("sum", 0.0) for part in parts],
        parts[0].get("norm", 0.0),
    )


def _rank(entries: Sequence[ProofEntry], folder: Path, rank: int) -> None:
    try:
        for number, entry in enumerate(entries):
            if rank < entry.course.world_size:
                scratch = _scratch(folder, number)
                spec = BACKENDS.get(entry.entrant.engine)
                step = spec is None or (SyncKind.STEP in spec.sync and entry.policy.every_step)
                done = (_follow if step else follow_windows)(entry, scratch, rank)
                part = folder / f".trained-{number}-{rank}.pt"
                torch.save(done, part)
                part.rename(folder / f"trained-{number}-{rank}.pt")
    except Exception as error:
        (folder / f"failure-{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        if isinstance(error, ValueError) and is_ours(error):  # a refusal, which the table of proofs explains
            raise SystemExit(1) from None
        raise


def _follow(entry: ProofEntry, scratch: Path, rank: int) -> dict[str, Any]:
    """Train one rank's part of a course. Return its losses, weighted by its share of the global batch, digests and
    differences after every step, and the final state."""
    entrant, course = entry.entrant, entry.course
    size = course.world_size
    job = job_of(entry, scratch)
    loop = TrainingLoop(job, rank, lambda event: None)
    replica, backend = loop.replica, None
    if entrant.engine:
        side: Any = importlib.import_module(entrant.module).Backend if entrant.module else load(entrant.engine)
        backend = side(job, rank, loop)
        backend.join(Join(rank, 0, tuple(range(size)), True, "proof"))
        replica.gradient_sync = backend.gradient_sync(replica)
    losses, digests, apart, unshards, sums = [], [], [], True, {}
    for step in range(course.first, course.first + course.steps):
        batch = course.batches(step)[rank]
        loss, _ = replica.step(batch, course.seen(step))
        losses.append(float(loss.detach()) * batch.samples / batch.total if loss is not None else 0.0)
        if not entry.every_step and step < course.first + course.steps - 1:
            continue
        views = []
        for _ in range(1 if backend is None or entry.truth is None else 2):
            with backend.averaged_weights(exact=True) if backend is not None else torch.no_grad():
                state = shown(replica.model.state_dict(), entry.only)
                views.append(fingerprint(state))
                sums = _sums(state)
                if entry.truth is not None and len(views) == 1:
                    apart.append(against(state, views[0], entry.truth, f"{step}"))
        unshards &= len(set(views)) == 1
        digests.append(views[0])
    if backend is not None:
        backend.finish()
    state = {name: value.clone() for name, value in replica.model.state_dict().items()} if entry.truth is None else {}
    if backend is not None:
        backend.close()
    replica.close()
    return {"losses": losses, "digests": digests, "apart": apart, "unshards": unshards, "state": state, **sums}


def _sums(state: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the sum of all real numbers in a state, and their L2 norm."""
    real = [value.detach().double() for value in state.values() if value.is_floating_point()]
    squares = sum(float(value.square().sum()) for value in real)
    return {"sum": sum(float(value.sum()) for value in real), "norm": math.sqrt(squares)}
