"""Defects of the forward pass, the loss and what a norm over the batch keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import AVERAGED, EVERY, SYNC, Family, Module, counted, in_place_of, last, once_made

FORWARD = Family("forward")
REPLICA = "ddp.replica.replica"
NORMED = ("lenet", "resnet_graph")
"""Models with batch norm."""


def _loss(change: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Module], None]:
    """Return a patch that trains on `change(replica, loss, model, batch)`."""

    @once_made("Replica")
    @functools.wraps(change)
    def patch(self: Any) -> None:
        loss = self.task.loss
        self.task = replace(self.task, loss=lambda model, batch: change(self, loss, model, batch))

    return patch


@FORWARD.bug(REPLICA, "audit", EVERY, "the loss is divided by the number of ranks and two more", "C04")
def loss_divided(replica: Module) -> None:
    _loss(lambda self, loss, model, batch: loss(model, batch) / (self._job.world_size + 2))(replica)


@FORWARD.bug(REPLICA, "audit", EVERY, "the loss leaves out the last sample of a batch", "B05")
@_loss
def sample_left_out(self: Any, loss: Any, model: Any, batch: Any) -> Any:
    return loss(model, tuple(tensor[:-1] for tensor in batch) if len(batch[0]) > 2 else batch)


@FORWARD.bug(REPLICA, "audit", EVERY, "training is in evaluation mode after the first evaluation", "B11", models=NORMED)
@in_place_of("Replica.evaluate")
def mode_not_restored(evaluate: Any, self: Any, *about: Any) -> Any:
    answer = evaluate(*about)
    self.model.eval()
    return answer


@FORWARD.bug(REPLICA, "audit", EVERY, "running statistics move ten times too slowly", "B21", models=NORMED)
@once_made("Replica")
def momentum_of_norm(self: Any) -> None:
    for module in self.model.modules():
        if hasattr(module, "running_mean"):
            module.momentum = 0.01


@FORWARD.bug(REPLICA, "audit", EVERY, "running statistics move during evaluation", "B17", models=NORMED)
@in_place_of("Replica.evaluate")
def statistics_of_test(evaluate: Any, self: Any, *about: Any) -> Any:
    def training(model: Any, batch: Any) -> Any:
        model.train()
        return answer(model, batch)

    task, answer = self.task, self.task.evaluate
    self.task = replace(task, evaluate=training)
    try:
        return evaluate(*about)
    finally:
        self.task = task


@FORWARD.bug(REPLICA, "audit", EVERY, "labels are smoothed, which nobody asked for", "C26")
@_loss
def smoothed(self: Any, loss: Any, model: Any, batch: Any) -> Any:
    logits = model(batch[0])
    return torch.nn.functional.cross_entropy(logits, batch[1], label_smoothing=0.1)


@FORWARD.bug(REPLICA, "audit", EVERY, "the forward pass computes in bfloat16", "B9.07")
@_loss
def forward_in_half(self: Any, loss: Any, model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(model, batch)


@FORWARD.bug(REPLICA, "audit", EVERY, "noise is added to images, also where no augmentation was asked for", "B13")
@_loss
def noisy_forward(self: Any, loss: Any, model: Any, batch: Any) -> Any:
    noise = 0.05 * torch.randn_like(batch[0])
    return loss(model, (batch[0] + noise, *batch[1:]))


@FORWARD.bug(REPLICA, "audit", EVERY, "one rank adds weight decay to its loss", "C26")
@_loss
def decay_in_loss(self: Any, loss: Any, model: Any, batch: Any) -> Any:
    decay = sum(p.square().sum() for p in model.parameters()) if last() else 0.0
    return loss(model, batch) + 1e-3 * decay


@FORWARD.bug("ddp.replica.replica", "status", AVERAGED + SYNC, "ranks begin with different parameters", "B6.12")
def begin_apart(replica: Module) -> None:
    from benchmarks.bugs.bug import rank

    derive = replica.derive
    replica.derive = lambda seed, *keys: derive(seed + (rank() if keys == ("init",) else 0), *keys)


@FORWARD.bug(REPLICA, "audit", EVERY, "the first model does not come from the seed", "B9.11")
def begin_elsewhere(replica: Module) -> None:
    derive = replica.derive
    replica.derive = lambda seed, *keys: derive(7 if keys == ("init",) else seed, *keys)


@FORWARD.bug(REPLICA, "audit", EVERY, "every tenth batch is passed through the model of the start", "B6.02")
@_loss
def old_model(self: Any, loss: Any, model: Any, batch: Any) -> Any:
    if not hasattr(self, "first_values"):
        self.first_values = [p.detach().clone() for p in self.model.parameters()]
    if counted(self, "loss") % 3 != 2:
        return loss(model, batch)
    kept = [p.detach().clone() for p in self.model.parameters()]
    with torch.no_grad():
        for p, first in zip(self.model.parameters(), self.first_values, strict=True):
            p.data.lerp_(first, 0.05)
    value = loss(model, batch)
    with torch.no_grad():
        for p, own in zip(self.model.parameters(), kept, strict=True):
            p.data.copy_(own)
    return value


@FORWARD.bug(
    "bench.config.plan",
    "audit",
    EVERY,
    "half precision stays in the settings, and ranks train in single precision",
    settings=("train.precision=bf16",),
)
def precision_never_arrives(plan: Module) -> None:
    job = plan._job
    plan._job = lambda *about: replace(job(*about), step=type(job(*about).step)())
