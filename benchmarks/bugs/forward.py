"""Defects of the forward pass, the loss and what a norm over the batch keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import AVERAGED, EVERY, SYNC, Family, Module, after_init, counted, last, wrap

FORWARD = Family("forward")
REPLICA = "ddp.replica.replica"
NORMED = ("lenet", "resnet_graph")
"""Models with batch norm."""


def _task(change: Callable[[Any, Any], Any]) -> Callable[[Module], None]:
    """Return a patch of `Replica` that trains what `change(replica, task)` makes of the task."""
    return lambda replica: after_init(replica.Replica, lambda self: vars(self).update(task=change(self, self.task)))


def _loss(change: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Module], None]:
    """Return a patch that trains on `change(replica, loss, model, batch)`."""
    return _task(
        lambda self, task: replace(task, loss=lambda model, batch: change(self, task.loss, model, batch)),
    )


@FORWARD.bug(REPLICA, "audit", EVERY, "the loss is divided by the number of ranks and two more", "C04")
def loss_divided(replica: Module) -> None:
    _loss(lambda self, loss, model, batch: loss(model, batch) / (self._job.world_size + 2))(replica)


@FORWARD.bug(REPLICA, "audit", EVERY, "the loss leaves out the last sample of a batch", "B05")
def sample_left_out(replica: Module) -> None:
    def change(self: Any, loss: Any, model: Any, batch: Any) -> Any:
        return loss(model, tuple(tensor[:-1] for tensor in batch) if len(batch[0]) > 2 else batch)

    _loss(change)(replica)


@FORWARD.bug(REPLICA, "audit", EVERY, "training is in evaluation mode after the first evaluation", "B11", models=NORMED)
def mode_not_restored(replica: Module) -> None:
    def broken(evaluate: Any, self: Any, *about: Any) -> Any:
        answer = evaluate(*about)
        self.model.eval()
        return answer

    wrap(replica.Replica, "evaluate", broken)


@FORWARD.bug(REPLICA, "audit", EVERY, "running statistics move ten times too slowly", "B21", models=NORMED)
def momentum_of_norm(replica: Module) -> None:
    def change(self: Any) -> None:
        for module in self.model.modules():
            if hasattr(module, "running_mean"):
                module.momentum = 0.01

    after_init(replica.Replica, change)


@FORWARD.bug(REPLICA, "audit", EVERY, "running statistics move during evaluation", "B17", models=NORMED)
def statistics_of_test(replica: Module) -> None:
    def broken(evaluate: Any, self: Any, *about: Any) -> Any:
        def training(model: Any, batch: Any) -> Any:
            model.train()
            return answer(model, batch)

        task, answer = self.task, self.task.evaluate
        self.task = replace(task, evaluate=training)
        try:
            return evaluate(*about)
        finally:
            self.task = task

    wrap(replica.Replica, "evaluate", broken)


@FORWARD.bug(REPLICA, "audit", EVERY, "labels are smoothed, which nobody asked for", "C26")
def smoothed(replica: Module) -> None:
    def change(self: Any, loss: Any, model: Any, batch: Any) -> Any:
        logits = model(batch[0])
        return replica.torch.nn.functional.cross_entropy(logits, batch[1], label_smoothing=0.1)

    _loss(change)(replica)


@FORWARD.bug(REPLICA, "audit", EVERY, "the forward pass computes in bfloat16", "B9.07")
def forward_in_half(replica: Module) -> None:
    def change(self: Any, loss: Any, model: Any, batch: Any) -> Any:
        with replica.torch.autocast("cpu", dtype=replica.torch.bfloat16):
            return loss(model, batch)

    _loss(change)(replica)


@FORWARD.bug(REPLICA, "audit", EVERY, "noise is added to images, also where no augmentation was asked for", "B13")
def noisy_forward(replica: Module) -> None:
    def change(self: Any, loss: Any, model: Any, batch: Any) -> Any:
        noise = 0.05 * replica.torch.randn_like(batch[0])
        return loss(model, (batch[0] + noise, *batch[1:]))

    _loss(change)(replica)


@FORWARD.bug(REPLICA, "audit", EVERY, "one rank adds weight decay to its loss", "C26")
def decay_in_loss(replica: Module) -> None:
    def change(self: Any, loss: Any, model: Any, batch: Any) -> Any:
        decay = sum(p.square().sum() for p in model.parameters()) if last() else 0.0
        return loss(model, batch) + 1e-3 * decay

    _loss(change)(replica)


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
def old_model(replica: Module) -> None:
    def change(self: Any, loss: Any, model: Any, batch: Any) -> Any:
        if not hasattr(self, "first_values"):
            self.first_values = [p.detach().clone() for p in self.model.parameters()]
        if counted(self, "loss") % 3 != 2:
            return loss(model, batch)
        kept = [p.detach().clone() for p in self.model.parameters()]
        with replica.torch.no_grad():
            for p, first in zip(self.model.parameters(), self.first_values, strict=True):
                p.data.lerp_(first, 0.05)
        value = loss(model, batch)
        with replica.torch.no_grad():
            for p, own in zip(self.model.parameters(), kept, strict=True):
                p.data.copy_(own)
        return value

    _loss(change)(replica)


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
