"""Programs for torch's DistributedDataParallel with models of their own; the list of all, and how a rank runs them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ddp
from tests.parallel import loops
from tests.parallel.loops import STEPS, Log, Wrap, batch, loss, net, norm_net, optimizer_of

TRANSPORTS = ("memory", "gloo")
Program = Callable[[int, Wrap, Log], None]


class Parts(nn.Module):
    """Uses the parts that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(5, 2) for _ in range(3))

    def forward(self, inputs: Tensor, used: list[int]) -> Tensor:
        return torch.stack([self.parts[index](inputs) for index in used]).sum()


def unused(rank: int, wrap: Wrap, log: Log, *, to_none: bool = True) -> None:
    """Part 0 is used by both, 1 by rank 1 alone, 2 in the second step alone."""
    model = wrap(Parts(), find_unused_parameters=True)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        model(batch(rank, step), [0, 1, 2] if step == 1 else [0, 1] if rank else [0]).square().backward()
        optimizer.step()
        log.model(model)


class Shared(nn.Module):
    """Uses one layer twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.again = self.first
        self.head = nn.Linear(5, 1)

    def forward(self, inputs: Tensor) -> Any:
        return self.head(torch.tanh(self.again(torch.tanh(self.first(inputs)))))


@dataclass
class Answer:
    out: Tensor
    hidden: Tensor


class Answers(nn.Module):
    """Returns more than a tensor."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.one, self.two, self.kind = nn.Linear(5, 4), nn.Linear(4, 2), kind

    def forward(self, inputs: Tensor) -> Any:
        hidden = torch.tanh(self.one(inputs))
        out = self.two(hidden)
        kinds = {
            "dataclass": Answer(out, hidden),
            "dict": {"out": out, "hidden": [hidden]},
            "tuple": (out, (hidden, None)),
        }
        return kinds[self.kind]


def members(found: Any) -> tuple[Tensor, Tensor]:
    """What an answer holds, whatever its kind."""
    if isinstance(found, dict):
        return found["out"], found["hidden"][0]
    return (found.out, found.hidden) if isinstance(found, Answer) else (found[0], found[1][0])


def answers(rank: int, wrap: Wrap, log: Log, *, kind: str, **settings: Any) -> None:
    model = wrap(Answers(kind), **settings)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        out, hidden = members(model(batch(rank, step)))
        (loss(out) + loss(hidden)).backward()
        optimizer.step()
        log.model(model)


def adversaries(rank: int, wrap: Wrap, log: Log) -> None:
    """Two wrapped models, of which one trains on what the other makes."""
    maker, judge = wrap(nn.Linear(5, 5)), wrap(net())
    optimizers = optimizer_of(maker), optimizer_of(judge)
    for step in range(STEPS):
        made = maker(batch(rank, step))
        optimizers[1].zero_grad()
        loss(judge(made.detach())).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(judge(made)).backward()
        optimizers[0].step()
        log.model(maker)
        log.model(judge)


class Segments(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.layers[0](inputs)
        for layer in list(self.layers)[1:]:
            hidden = torch.tanh(checkpoint(layer, hidden, use_reentrant=self.reentrant))
        return hidden


def segments_outside_inside(rank: int, wrap: Wrap, log: Log, *, reentrant: bool) -> None:
    """Segments are passes of their own inside a pass, and go where that goes."""
    model = wrap(Segments(reentrant))
    for step in range(STEPS):
        model.zero_grad()
        out = model(batch(rank, step))
        with model.no_sync():
            loss(out).backward()
        log.model(model)


def penalty(rank: int, wrap: Wrap, log: Log, *, of: str) -> None:
    """A gradient's norm in the loss: of the inputs, or of the parameters."""
    model = wrap(net())
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = batch(rank, step).requires_grad_()
        found = loss(model(inputs))
        towards = [inputs] if of == "inputs" else list(model.parameters())
        slopes = torch.autograd.grad(found, towards, create_graph=True)
        (found + sum(slope.square().sum() for slope in slopes)).backward()
        optimizer.step()
        log.model(model)


def half_parameters(rank: int, wrap: Wrap, log: Log, *, dtype: torch.dtype) -> None:
    model = wrap(net().to(dtype))
    for step in range(STEPS):
        loss(model(batch(rank, step).to(dtype))).backward()
        log.model(model)


def shared_sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Linear(4, 2))


def sparse(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(shared_sparse())
    for step in range(STEPS):
        model.zero_grad()
        loss(model(torch.tensor([rank, 3, step]))).backward()
        log.model(model)


def of_a_part_that_only_no_sync_used(rank: int, wrap: Wrap, log: Log) -> None:
    model = wrap(Parts(), find_unused_parameters=True)
    for step in range(STEPS):
        model.zero_grad()
        with model.no_sync():
            model(batch(rank, 2 * step), [0, 1]).square().backward()
        model(batch(rank, 2 * step + 1), [0]).square().backward()
        log.model(model)


ALIKE: dict[str, Program] = {
    "plain": loops.plain,
    "zero_grad to zero": partial(loops.plain, to_none=False),
    "without clearing": loops.without_clearing,
    "small buckets": partial(loops.plain, bucket_cap_mb=0.0001),
    "batch norm": partial(loops.plain, make=norm_net),
    "batch norm, buffers apart": partial(loops.plain, make=norm_net, broadcast_buffers=False),
    "static graph": partial(loops.plain, static_graph=True),
    "clipped": loops.clipped,
    "one context": loops.one_context,
    "one context, batch norm": partial(loops.one_context, norm=True),
    "by attribute": loops.by_attribute,
    "forward inside after one outside": loops.forward_inside_after_one_outside,
    "forwards on both sides": loops.forwards_on_both_sides,
    "local before": loops.local_before,
    "several forwards": loops.several_forwards,
    "several forwards, batch norm": partial(loops.several_forwards, norm=True),
    "second pass inside no_sync": loops.second_pass_inside,
    "unused": unused,
    "unused, zero_grad to zero": partial(unused, to_none=False),
    "a part that only no_sync used": of_a_part_that_only_no_sync_used,
    "shared parameters": partial(loops.plain, make=Shared),
    "shared parameters, static graph": partial(loops.plain, make=Shared, static_graph=True),
    "frozen meanwhile": loops.frozen_meanwhile,
    "evaluated": partial(loops.evaluated, train_mode=False),
    "evaluated in inference mode": partial(loops.evaluated, train_mode=False, without=torch.inference_mode),
    "evaluated in train mode": partial(loops.evaluated, train_mode=True),
    "gradients in eval mode": loops.with_gradients_in_eval_mode,
    "first without gradients": loops.first_without_gradients,
    "adversaries": adversaries,
    "autocast to bfloat16": partial(loops.plain, autocast=True),
    "sparse": sparse,
    "bfloat16 parameters": partial(half_parameters, dtype=torch.bfloat16),
    "float16 parameters": partial(half_parameters, dtype=torch.float16),
    "float64 parameters": partial(half_parameters, dtype=torch.float64),
    "held gradient, zeroed": loops.kept_reference,
}
"""Those that must end alike, bit for bit, in every value that they see."""
PLACES = {False: "outside", True: "inside"}
ALIKE |= {
    f"accumulation, forward {PLACES[f]}, backward {PLACES[b]}{', batch norm' * norm}": partial(
        loops.accumulation, forward=f, backward=b, norm=norm
    )
    for f in PLACES
    for b in PLACES
    for norm in (False, True)
}
ALIKE |= {
    f"returns a {kind}{', unused looked for' * look}": partial(answers, kind=kind, find_unused_parameters=look)
    for kind in ("dict", "tuple", "dataclass")
    for look in (False, True)
}
for reentrant in (False, True):
    ALIKE[f"checkpointed, {reentrant=}"] = partial(loops.plain, make=partial(Segments, reentrant))
    ALIKE[f"checkpointed, backward inside, {reentrant=}"] = partial(segments_outside_inside, reentrant=reentrant)
ALIKE |= {f"penalty on {of}": partial(penalty, of=of) for of in ("inputs", "parameters")}


def past_the_wrapper(rank: int, wrap: Wrap, log: Log) -> None:
    """A forward pass of the model itself."""
    model = wrap(net())
    for step in range(STEPS):
        model.zero_grad()
        loss(model.module(batch(rank, step))).backward()
        log.model(model)


OURS_AGREES: dict[str, Program] = {
    "two losses over one graph": loops.two_losses,
    "two forward passes, then two passes": loops.forwards_then_passes,
    "past the wrapper": past_the_wrapper,
}
"""Those that leave other gradients on each rank under torch's, and the same on all under ours."""


def run(rank: int, folder: Path) -> None:
    """Every program under torch's and under ours, on each transport, in this rank; what was seen goes to its file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    seen = {"torch": _seen(rank, nn.parallel.DistributedDataParallel)}
    for transport in TRANSPORTS:
        with closing(ddp.init(transport=transport)):
            seen[transport] = _seen(rank, ddp.DistributedDataParallel)
    torch.save(seen, folder / f"{rank}.pt")
    dist.destroy_process_group()


def _seen(rank: int, wrap: Wrap) -> dict[str, dict[str, Any]]:
    found = {}
    for name, program in (ALIKE | OURS_AGREES).items():
        torch.manual_seed(rank)  # those of rank 0 count
        log = Log()
        try:
            program(rank, wrap, log)
        except Exception as error:
            log.error = f"{type(error).__name__}: {error}"
        found[name] = vars(log)
    return found
