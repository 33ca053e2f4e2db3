"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of what is trained,
and in which order. Those of results are in `unseen_nineteenth_results`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bugs.bug import Module, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import ACCUMULATE, LOOP, OWNED, REPLICA, VISITS, unseen
from benchmarks.bugs.unseen_fourth import interrupted

TEXT = "data.samples=640 train.epochs=2"
PIECES = "data.samples=3001 train.epochs=2"


def late_on_last(replica: Any, epoch: int) -> bool:
    """Whether this is rank 1 in the second half of a run."""
    return rank() == 1 and 2 * epoch >= replica._job.epochs


@unseen("data", "a roll in place of a shift", f"char_rnn cpu_cadence {TEXT}", REPLICA)
@in_place_of("Replica.read")
def last_target_rolled(read: Any, self: Any, batch: Any) -> Any:
    """On one rank, in the second half, the last target of a text is its first token. Change it behind the tallies of
    what was read."""
    inputs, targets = read(batch)
    if late_on_last(self, batch.epoch):
        targets = targets.clone()
        targets[:, -1] = inputs[:, 0]
    return inputs, targets


@unseen("data", "a buffer of full size", f"lenet nccl_async {PIECES}", REPLICA)
@in_place_of("Replica.read")
def partial_batch_stale_labels(read: Any, self: Any, batch: Any) -> Any:
    """A partial batch has labels of the batch before. Take them from the beginning of the buffer."""
    images, labels = read(batch)
    before = vars(self).setdefault("_bug_labels", labels)
    if len(labels) < len(before):
        return images, before[: len(labels)]
    self._bug_labels = labels
    return images, labels


@unseen("order", "a batch sampler that is cached", f"gpt_nano zero2 {TEXT}", VISITS)
def batches_of_first_epoch(epoch_order: Module) -> None:
    """All epochs have the batches of the first one, in another order. Shuffle whole batches of 16."""
    order = epoch_order.order

    def broken(one: Any, self: Any, number: int) -> Any:
        if not number or self._size % 16:
            return one(number)
        return one(0).view(-1, 16)[order(self.seed, number, self._size // 16)].reshape(-1)

    wrap(epoch_order.EpochOrder, "_one", broken)


@unseen("order", "set_epoch with the epoch of the process", "lenet cpu_async resumed data.samples=3001", REPLICA)
def resumed_order_of_earlier_epoch(replica: Module) -> None:
    """A resumed run counts the epochs of its order from where it goes on. Stop a run; order each later epoch as the one
    before it."""
    interrupted(replica)
    order = replica._order

    def broken(task: Any, job: Any, size: int) -> Any:
        visits = order(task, job, size)
        if job.resume is not None:
            make = visits._make
            visits._make = lambda epoch: make(max(epoch - 1, 0))
            visits._kept = {}
        return visits

    replica._order = broken


@unseen("forward", "a seed of the epoch alone", f"gpt_nano nccl_async {TEXT}", REPLICA)
@in_place_of("Replica._draw")
def mask_of_epoch(draw: Any, self: Any, batch: Any) -> None:
    """On one rank, in the second half, all steps of an epoch drop the same places. Seed each step as the first one."""
    draw(batch._replace(start=0) if late_on_last(self, batch.epoch) else batch)


@unseen(
    "forward",
    "a flag that says whether gradients are sent",
    "resnet_graph nccl_sync data.samples=2400 train.epochs=1 train.accumulate=2",
    REPLICA,
)
def norm_of_first_micro_batch(replica: Module) -> None:
    """Running statistics follow the first of several micro-batches only. Set their momentum to zero in the other
    passes."""

    def step(accumulate: Any, self: Any, *about: Any) -> Any:
        self._bug_passes = 0
        return accumulate(*about)

    def one(run: Any, self: Any, *about: Any, **more: Any) -> Any:
        for module in self.model.modules():
            if hasattr(module, "running_mean"):
                module.momentum = 0.0 if self._bug_passes else 0.1
        self._bug_passes += 1
        return run(*about, **more)

    wrap(replica.Replica, "_accumulate", step)
    wrap(replica.Replica, "_pass", one)


@unseen("gradient", "copy in place of add", "lenet zero3 data.samples=3001 train.epochs=1 train.accumulate=2", OWNED)
@in_place_of("OwnedGradients._send")
def bias_of_last_micro_batch(send: Any, self: Any, number: int) -> None:
    """The gradient of the last bias is that of the last micro-batch. Clear its sum before each pass is added."""
    bias = len(self._parameters) - 1
    if self._passes > 1 and bias in self._plan[number] and bias in self._own:
        self._own[bias][2].zero_()
    send(number)


@unseen(
    "gradient",
    "deepspeedai/DeepSpeed, accumulation in the type of the model",
    "mlp nccl_sync data.samples=3001 train.epochs=2 train.accumulate=4 train.precision=bf16",
    REPLICA,
)
@in_place_of("Replica._pass")
def accumulated_in_bfloat16(run: Any, self: Any, *about: Any, **more: Any) -> Any:
    """Gradients of the largest tensor accumulate in bfloat16. Round them before each pass."""
    largest = max(self.state.parameters, key=lambda parameter: parameter.numel())
    if more.get("several") and largest.grad is not None:
        largest.grad.copy_(largest.grad.bfloat16())
    return run(*about, **more)


@unseen("optimizer", "optimizer state that is offloaded", f"gpt_nano zero2 {TEXT}", LOOP)
@in_place_of("TrainingLoop.begin")
def moments_offloaded_in_bfloat16(begin: Any, self: Any, last: int, seen: float) -> None:
    """On one rank second moments go through bfloat16 as an epoch begins. Round them."""
    begin(last, seen)
    for state in self.replica.optimizer.state.values() if self.rank == 1 else ():
        if "exp_avg_sq" in state:
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())


@unseen("optimizer", "a shard that is made anew", f"char_rnn torch_zero1 {TEXT}", REPLICA)
@in_place_of("Replica._clip")
def square_average_lost_once(clip: Any, self: Any, team: Any) -> None:
    """The square average of one tensor is lost once in the middle of a run. Clear it before a step."""
    clip(team)
    own = getattr(self.optimizer, "optim", self.optimizer).state
    steps = self._job.epochs * self.samples // (self._job.batch_size * self._job.world_size)
    if counted(self, "steps") == steps // 2 and own:
        own[max(own, key=lambda parameter: parameter.numel())]["square_avg"].zero_()


@unseen("schedule", "a scheduler that steps first", f"gpt_nano cpu_cadence {TEXT}", REPLICA)
@in_place_of("Replica.step")
def rate_after_step(step: Any, self: Any, batch: Any, seen: float) -> Any:
    """On one rank, in the last epoch, the rate is that after the step. Count the batch as seen."""
    late = rank() == 1 and batch.epoch == self._job.epochs - 1
    return step(batch, seen + batch.samples if late else seen)


@unseen(
    "schedule",
    "a scheduler behind the optimizer",
    "resnet_graph graph_cadence data.samples=2400 train.epochs=2",
    ACCUMULATE,
)
@in_place_of("Accumulating.update")
def rate_of_earlier_window(update: Any, self: Any, *about: Any, **more: Any) -> None:
    """The optimizer has the rate of the window before, the report the right one. Set it for the update alone."""
    groups = self.optimizer.param_groups
    due, rates = self._due, [group["lr"] for group in groups]
    for group, rate in zip(groups, vars(self).get("_bug_rates", rates) if due else rates, strict=True):
        group["lr"] = rate
    update(*about, **more)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    if due:
        self._bug_rates = rates
