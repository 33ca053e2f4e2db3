"""Who is held to the oracle, and a rank's side of that: several courses in one process, as its engine trains them."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import models
from bench.models.data.options import PLAIN, DataOptions
from bench.models.setup import Recipe
from ddp.backends.base import load
from ddp.core.commands import Join
from ddp.core.policies.sync import Sync
from ddp.data.source import TensorSource
from ddp.engine.loop import TrainingLoop
from ddp.process import forkserver
from ddp.replica.norms import least_samples
from ddp.replica.task import Job, Task
from tests.conformance.oracle import Course, Rule
from tests.runtime import toy

OURS = Rule(scaled="gradient", buffers="mean")
TORCH = Rule(scaled="loss", buffers="own")


@dataclass(frozen=True)
class Entrant:
    """A synchronous engine on a transport."""

    engine: str
    """What `ddp.backends.base.load` knows."""
    transport: str
    rule: Rule
    exact: int
    """Up to so many ranks the order of its sums is known, and its bits are those of the oracle."""
    module: str = ""
    """Where its `Backend` is, if not with the engine."""


ENTRANTS = {
    "nccl_sync/memory": Entrant("nccl", "memory", OURS, exact=4),
    "nccl_sync/gloo": Entrant("nccl", "gloo", OURS, exact=2),
    "zero1": Entrant("zero1", "memory", OURS, exact=4),
    "zero2": Entrant("zero2", "memory", OURS, exact=4),
    "zero3": Entrant("zero3", "memory", replace(OURS, flat=False), exact=4),
    "torch_ddp": Entrant("torch_ddp", "gloo", TORCH, exact=2),
    "torch_zero1": Entrant("torch_zero1", "gloo", TORCH, exact=2),
    "torch_fsdp": Entrant("torch_fsdp", "gloo", replace(TORCH, flat=False), exact=2),
    "torch_fsdp/groups": Entrant(
        "torch_fsdp", "gloo", replace(TORCH, flat=False), exact=2, module="tests.conformance.groups"
    ),
}

LENGTH, MOST = 16, 2000
"""Characters of a piece of text; samples that are enough for every course."""
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.005, momentum=0.9, weight_decay=1e-4),
    "AdamW": partial(torch.optim.AdamW, lr=3e-4),
}


def save_data(folder: Path) -> Path:
    """The bundled data of the quick recipes in files: to load them from there, a rank need not import what brings them."""
    for model in ("mlp", "gpt_nano"):
        source = models.make_task(model, _recipe(model), "data").train_data()
        torch.save(list(source.batch(torch.arange(min(len(source), MOST)))), folder / f"{_recipe(model).data}.pt")
    return folder


def _recipe(model: str) -> Recipe:
    """The quick one; of text, short pieces, and one data set for all images."""
    recipe = models.load(model).recipes["quick"]
    if recipe.data == "toy_language":
        return replace(recipe, data_options=DataOptions(seq_len=LENGTH))
    return replace(recipe, data="digits", data_options=PLAIN)


@cache
def _data(path: Path, dtype: torch.dtype) -> TensorSource:
    inputs, targets = torch.load(path)
    return TensorSource(inputs.to(dtype) if inputs.is_floating_point() else inputs, targets)


def make_task(model: str, optimizer: str, data: Path, dtype: torch.dtype = torch.float32) -> Task:
    """A model of the matrix with one of the optimizers, on the bundled data."""
    recipe = _recipe(model)
    task = models.make_task(model, recipe, "data")
    source = partial(_data, data / f"{recipe.data}.pt", dtype)
    model_of = task.model
    changed = {"model": lambda: model_of().to(dtype), "train_data": source, "eval_data": source}
    return replace(task, optimizer=OPTIMIZERS[optimizer], **changed)


def course(model: str, optimizer: str, world_size: int, data: Path, exact: bool = True) -> Course:
    """`DIGESTED` steps with four samples for each rank; in the last one, one or two, or with batch norm none for a rank.

    Where the result is not to be `exact`, in double precision: one rounding of float32 may switch a ReLU of the ResNet, and
    is 2e-4 after ten steps then, which says nothing of the engine.
    """
    tail, dtype = 2 * world_size + 1, torch.float32 if exact else torch.float64
    task = partial(make_task, model, optimizer, data, dtype)
    return Course(task, world_size, batch=4, steps=DIGESTED, tail=tail, least=_least(model))


@cache
def _least(model: str) -> int:
    return least_samples(models.make_task(model, _recipe(model), "data").model())


def normed_task() -> Task:
    """A perceptron with batch norm, which cannot be trained on one sample; in double precision."""
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(14, 6, generator=draw, dtype=torch.float64), torch.arange(14) % 2
    source = partial(TensorSource, inputs, targets)
    return replace(toy.task(norm=True), model=_normed, train_data=source, eval_data=source)


def _normed() -> nn.Module:
    return toy.net(True).double()


DIGESTED = 10
"""Steps after which ranks are compared."""


@dataclass
class Trained:
    """What a course came to."""

    losses: list[float]
    """Of the global batches."""
    digests: list[list[str]]
    """By rank and step."""
    state: dict[str, Tensor]


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Of all bits."""
    digest = hashlib.sha256()
    for value in state.values():
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


Entry = tuple[Entrant, Course]


def train(entries: Sequence[Entry], folder: Path) -> None:
    """Have all of them trained, one after the other, on ranks that are started once; `trained` reads the results."""
    context = forkserver.warm()
    size = max(each.world_size for _, each in entries)
    ranks = [context.Process(target=_rank, args=(entries, folder, rank)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def trained(number: int, world_size: int, folder: Path) -> Trained:
    """What became of an entry. AssertionError with the traceback of a rank that failed, in this one or before."""
    for failure in folder.glob("failure-*.txt"):
        assert (folder / f"trained-{number}-0.pt").exists(), failure.read_text()
    parts = [torch.load(folder / f"trained-{number}-{rank}.pt") for rank in range(world_size)]
    losses = [sum(shares) for shares in zip(*(part["losses"] for part in parts), strict=True)]
    return Trained(losses, [part["digests"] for part in parts], parts[0]["state"])


def _rank(entries: Sequence[Entry], folder: Path, rank: int) -> None:
    try:
        for number, (entrant, each) in enumerate(entries):
            if rank < each.world_size:
                scratch = folder / f"scratch-{number}"
                scratch.mkdir(exist_ok=True)
                torch.save(_follow(entrant, each, scratch, rank), folder / f"trained-{number}-{rank}.pt")
    except Exception:
        (folder / f"failure-{rank}.txt").write_text(traceback.format_exc())
        raise


def _follow(entrant: Entrant, course: Course, scratch: Path, rank: int) -> dict[str, Any]:
    """One rank, one course: losses weighed by their share of the global batch, digests after every step, final state."""
    size = course.world_size
    fields: dict[str, Any] = {"transport": entrant.transport, "device": "cpu"}
    job = Job(course.task, course.epochs, course.batch, course.seed, size, Sync(), entrant.engine, scratch, **fields)
    loop = TrainingLoop(job, rank, lambda event: None)
    side: Any = importlib.import_module(entrant.module).Backend if entrant.module else load(entrant.engine)
    backend, replica = side(job, rank, loop), loop.replica
    backend.join(Join(rank, 0, tuple(range(size)), True, "conformance"))
    replica.in_step = backend.in_step(replica)
    losses, digests = [], []
    for step in range(course.steps):
        batch = course.batches(step)[rank]
        loss, _ = replica.step(batch, course.seen(step))
        losses.append(float(loss.detach()) * batch.samples / batch.total if loss is not None else 0.0)
        if step < DIGESTED:
            with backend.consensus(exact=True):
                digests.append(fingerprint(replica.model.state_dict()))
    backend.settle()
    state = {name: value.clone() for name, value in replica.model.state_dict().items()}
    backend.close()
    return {"losses": losses, "digests": digests, "state": state}


def cells(names: Iterable[str] = models.MODELS) -> list[tuple[str, str]]:
    """Every model with every optimizer."""
    return list(itertools.product(names, OPTIMIZERS))
