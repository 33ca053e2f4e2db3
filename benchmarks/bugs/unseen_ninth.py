"""Defects of `benchmarks.bugs.unseen` in data, orders, forward passes and gradients: on the last of three ranks, in later
epochs, in shards and graphs, under PyTorch's own classes.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.bugs.bug import Module, after_init, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import GATHER, OWNED, REPLICA, TORCH, VISITS, unseen

AUGMENTED = "benchmarks.bugs.own_augmented"


@unseen("data", "A17", f"{AUGMENTED} graph_sync", "ddp.data.augment")
@in_place_of("shift_and_flip")
def crops_on_the_diagonal(shift: Any, images: Any, padding: int, draws: Any) -> Any:
    """Images are shifted along the diagonal alone. Shift an image to the right by what was drawn for its shift down."""

    def integers(low: int, high: int, *shape: int) -> Any:
        drawn = draws.integers(low, high, *shape)
        return drawn[:, :1].expand(-1, 2) if shape == (2,) else drawn

    return shift(images, padding, SimpleNamespace(integers=integers))


@unseen("data", "B11", f"{AUGMENTED} cpu_async world_size=3", GATHER)
@in_place_of("Gather.finished")
def not_augmented_on_rank_later(finish: Any, self: Any, batch: Any, *about: Any) -> Any:
    """Rank 2 stops augmenting after an epoch. Give rank 2 images as they are from the second epoch on."""
    augment = self._augment
    if augment is not None and rank() == 2 and batch.epoch:
        self._augment = lambda given, draws: given
    try:
        return finish(batch, *about)
    finally:
        self._augment = augment


@unseen("order", "A01", "mlp graph_cadence", VISITS)
@in_place_of("order")
def orders_rotated_from_third(make: Any, seed: int, epoch: int, samples: int) -> Any:
    """Later epochs are the second one, rotated. Save permutations: from the third epoch on rotate the second one's."""
    return make(seed, epoch, samples) if epoch < 2 else make(seed, 1, samples).roll(64 * epoch)


@unseen("forward", "B19", "lenet cpu_async world_size=3", REPLICA)
def variance_of_norms_biased(replica: Module) -> None:
    """Norms keep the biased variance. Let running variances learn from a batch's squares divided by their number, not
    by one less."""

    def change(self: Any) -> None:
        for module in self.model.modules():
            if hasattr(module, "running_var"):
                module.register_forward_pre_hook(before)
                module.register_forward_hook(after)

    def before(module: Any, args: Any) -> None:
        module.variance_before = module.running_var.clone()

    def after(module: Any, args: Any, out: Any) -> None:
        if module.training:
            number = args[0].numel() / args[0].shape[1]
            kept = module.variance_before * (1.0 - module.momentum)
            module.running_var.data.sub_(kept).mul_((number - 1.0) / number).add_(kept)

    after_init(replica.Replica, change)


@unseen("forward", "B13", "gpt_nano torch_ddp", REPLICA)
def dropout_not_rescaled(replica: Module) -> None:
    """What dropout leaves is not scaled up on rank 1. Give rank 1 a dropout of its own, which drops and does no
    more."""

    def dropped(layer: Any, values: Any) -> Any:
        left = type(layer)._drop(layer, values)
        return left * (1.0 - layer.dropout) if layer.training else left

    def change(self: Any) -> None:
        for module in self.model.modules() if rank() == 1 else ():
            if hasattr(module, "_drop"):
                module._drop = partial(dropped, module)

    after_init(replica.Replica, change)


@unseen("gradient", "B9.19", "mlp zero3", OWNED)
@in_place_of("OwnedGradients._send")
def bucket_sent_too_early(send: Any, self: Any, number: int) -> None:
    """Rank 1 sends a bucket too early now and then. Send every 97th bucket of rank 1 before its last eighth is
    filled."""
    values = self._filling.get(number)
    if rank() == 1 and values is not None and counted(self, "sent") % 97 == 96:
        values[-(len(values) // 8) :] = 0.0
    send(number)


@unseen("gradient", "C18", "lenet zero2 train.max_grad_norm=0.2", REPLICA)
def not_clipped_at_the_end(replica: Module) -> None:
    """The last epoch's gradients are not clipped. Forget the limit in the last epoch."""

    def step(whole: Any, self: Any, batch: Any, seen: float) -> Any:
        self.epoch_trained = batch.epoch
        return whole(batch, seen)

    def clip(whole: Any, self: Any, team: Any) -> None:
        if self.epoch_trained < self._job.epochs - 1:
            whole(team)

    wrap(replica.Replica, "step", step)
    wrap(replica.Replica, "_clip", clip)


@unseen("gradient", "C08", "mlp torch_ddp train.accumulate=2", TORCH)
@in_place_of("TorchStep.one_pass")
def exchange_left_out(one_pass: Any, self: Any, last: bool) -> Any:
    """Every 50th step is not exchanged. Leave the last pass of every 50th step without the exchange, too."""
    leaks = last and counted(self, "stepped") % 50 == 49
    return one_pass(last and not leaks)


@unseen("gradient", "C20", "mlp cpu_async train.precision=fp16", "ddp.replica.optim.loss_scale")
def overflow_steps_with_zeros(loss_scale: Module) -> None:
    """Gradients that overflow count as zeros. Clear gradients that overflow, of a factor that is too large at first,
    and step."""
    loss_scale.LossScale.__init__.__defaults__ = (2.0**22, 0)

    def broken(unscale: Any, self: Any, gradients: Any) -> bool:
        every = list(gradients)
        if not unscale(every):
            self.value, self.steps = self.value / 2.0, 0
            for gradient in every:
                gradient.zero_()
        return True

    wrap(loss_scale.LossScale, "unscale", broken)
