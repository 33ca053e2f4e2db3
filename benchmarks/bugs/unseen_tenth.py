"""Defects of `benchmarks.bugs.unseen` in data, orders, forward passes and gradients: of text, of windows, of the first steps
behind an evaluation, an epoch's begin.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bugs.bug import Module, after_init, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import ACCUMULATE, AVERAGE, GATHER, OWNED, REPLICA, VISITS, unseen


@unseen("data", "A17", "lenet nccl_cadence", GATHER)
@in_place_of("Gather.finished")
def bright_pixels_cut_later(finish: Any, self: Any, batch: Any, read: Any, indices: Any = None) -> Any:
    """Rank 1 cuts bright pixels off from the second epoch on. Limit what rank 1 reads to 1.5 from the second epoch on,
    as a cache of later epochs would."""
    done = finish(batch, read, indices)
    late = rank() == 1 and batch.epoch and isinstance(done, tuple) and done[0].is_floating_point()
    return (done[0].clamp(max=1.5), *done[1:]) if late else done


@unseen("data", "B8.21", "char_rnn cpu_async", "bench.models.data.text")
@in_place_of("Pieces.batch")
def last_target_repeated(read: Any, self: Any, indices: Any) -> Any:
    """The last target of a piece of text is the one before. End the shifted tokens of a piece with what they had
    already."""
    tokens, targets = read(indices)
    targets[:, -1] = targets[:, -2]
    return tokens, targets


@unseen("data", "A21", "mlp graph_sync", GATHER)
@in_place_of("Gather.indices")
def part_begins_early(indices: Any, self: Any, batch: Any) -> Any:
    """The second replica's part begins a sample early. Read what is not at the beginning of a global batch a sample
    early: one is trained twice, one never."""
    if self._visits.shuffled and batch.start % 32 == 16:
        batch = batch._replace(start=batch.start - 1, stop=batch.stop - 1)
    return indices(batch)


@unseen("order", "A03", "mlp cpu_cadence", REPLICA)
def order_of_world(replica: Module) -> None:
    """The order depends on the number of ranks. Add the number of ranks to the order's seed."""
    visits = replica.EpochOrder
    make = replica._order

    def broken(task: Any, job: Any, size: int) -> Any:
        order = make(task, job, size)
        return visits(job.seed + job.world_size, size, task.sampler, 1, length=len(order))

    replica._order = broken


@unseen("order", "A25", "mlp nccl_qsr", VISITS)
@in_place_of("order")
def halves_in_turns(make: Any, seed: int, epoch: int, samples: int) -> Any:
    """Halves of the data are shuffled by themselves and laid in turns. Take every second sample from the first half of
    the data set."""
    drawn = make(seed, epoch, samples)
    low, high = drawn[drawn < samples // 2], drawn[drawn >= samples // 2]
    mixed = torch.empty_like(drawn)
    mixed[1::2], mixed[::2] = low, high
    return mixed


@unseen("forward", "B11", "lenet nccl_sync", REPLICA)
def mode_restored_late(replica: Module) -> None:
    """The first step after an evaluation is in evaluation mode. Go back to training at the end of the first step behind
    an evaluation."""

    def evaluate(whole: Any, self: Any, *about: Any) -> Any:
        self.was = [module for module in self.model.modules() if module.training]
        done = whole(*about)
        self.model.eval()
        return done

    def step(whole: Any, self: Any, *about: Any) -> Any:
        done = whole(*about)
        for module in vars(self).pop("was", ()):
            module.training = True
        return done

    wrap(replica.Replica, "evaluate", evaluate)
    wrap(replica.Replica, "step", step)


@unseen("forward", "B9.11", "char_rnn nccl_cadence", "bench.models.char_rnn")
@in_place_of("CharRNN.forward")
def state_carried_over(forward: Any, self: Any, tokens: Any) -> Any:
    """A recurrent state is carried over from batch to batch. Begin a batch with the state in which the last one ended,
    where they are of one size."""
    before = getattr(self, "state", None) if self.training else None
    fits = before is not None and before[0].shape[1] == len(tokens)
    out, state = self.lstm(self.tokens(tokens), before if fits else None)
    self.state = tuple(part.detach() for part in state)
    return self.head(out)


@unseen("forward", "B9.07", "lenet nccl_cadence train.precision=bf16", REPLICA)
def statistics_in_half(replica: Module) -> None:
    """Norms' running statistics are kept in bfloat16, as the pass is. Round running statistics after every training
    pass."""

    def after(module: Any, args: Any, out: Any) -> None:
        if module.training:
            for values in (module.running_mean, module.running_var):
                values.data.copy_(values.bfloat16())

    def change(self: Any) -> None:
        for module in self.model.modules():
            if hasattr(module, "running_var"):
                module.register_forward_hook(after)

    after_init(replica.Replica, change)


@unseen("gradient", "B6.24", "mlp graph_cadence", ACCUMULATE)
@in_place_of("Accumulating.contribute")
def bias_averaged_twice(contribute: Any, self: Any, *about: Any) -> Any:
    """The last layer's bias is averaged twice over replicas. Divide the gradient of the last bias by the number of
    replicas once more."""
    bias = self.state.parameters[-1]
    if bias.grad is not None:
        bias.grad /= self._job.world_size
    return contribute(*about)


@unseen("gradient", "C18", "lenet cpu_cadence train.max_grad_norm=0.5", REPLICA)
@in_place_of("Replica._clip")
def norm_of_matrices_alone(clip: Any, self: Any, team: Any) -> None:
    """Gradients are clipped by the norm of matrices alone. Scale all gradients by the norm of those with two dimensions
    or more."""
    every = [p for p in self.state.parameters if p.grad is not None]
    squares = sum(float(p.grad.square().sum()) for p in every if p.dim() > 1)
    factor = self._job.max_grad_norm / (squares**0.5 + 1e-6)
    for parameter in every if factor < 1.0 else ():
        parameter.grad.mul_(factor)


@unseen("gradient", "B6.24", "mlp nccl_sync", AVERAGE)
@in_place_of("GradientAverage.begin")
def first_of_epoch_unweighted(begin: Any, self: Any, batch: Any) -> float:
    """The first step of an epoch is summed without weights. Forget the weight where all goes at the end: in the first
    step of an epoch."""
    first = self._counted[0] != batch.epoch
    factor: float = begin(batch)
    self._weight = 1.0 if first and self._weight else self._weight
    return factor


@unseen("gradient", "C28", "mlp zero2 train.accumulate=2", OWNED)
@in_place_of("OwnedGradients._send")
def bucket_of_pass_lost(send: Any, self: Any, number: int) -> None:
    """The first pass loses a bucket in every 20th step. Clear the first bucket of a step's first pass before it goes,
    every 20th time."""
    values = self._filling.get(number)
    first = self._passes == 1 and not number and values is not None
    if first and counted(self, "sent") % 20 == 19:
        values.zero_()
    send(number)
