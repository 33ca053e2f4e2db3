"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of modes and settings that are seldom
tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import Module, counted, in_place_of, rank, wrap
from benchmarks.bugs.unseen import ACCUMULATE, ATTENTION, LOCAL_SGD, NCCL, PARTS, PASSES, RATES, REPLICA, unseen
from benchmarks.bugs.unseen_seventh import stopped

PLAIN = "benchmarks.bugs.own_plain virtual_nccl_cadence world_size=16"


@unseen("order", "A01", PLAIN, "ddp.virtual.rows")
@in_place_of("ReplicaRows.batch")
def rows_in_first_order(batch: Any, self: Any, steps: Any) -> Any:
    """Ranks in one operation read every epoch in the order of the first. Ask for the order of epoch 0; what is told of
    samples goes by the order that is due."""
    return batch([replace(step, batch=step.batch._replace(epoch=0)) for step in steps])


@unseen("forward", "C14, of a buffer that is filled anew while it is used", "lenet cpu_async", PASSES)
@in_place_of("StepPasses.loss")
def labels_off_in_loss(loss: Any, self: Any, task: Any, module: Any, tensors: Any) -> Any:
    """Labels of every 60th batch of rank 1 are one sample off as the loss is taken. Roll labels between their record
    and their use."""
    if rank() == 1 and counted(self, "losses") % 60 == 59:
        tensors = tensors[0], tensors[1].roll(1)
    return loss(task, module, tensors)


@unseen("forward", "ignore_index of another tokenizer", "gpt_nano nccl_sync", PARTS)
@in_place_of("cross_entropy")
def first_token_is_padding(entropy: Any, model: Any, batch: Any) -> Any:
    """A text's most frequent character counts as padding: it is neither learnt nor scored. Leave targets of token 0 out
    of the loss of texts."""
    tokens, targets = batch
    if targets.dim() < 2:
        return entropy(model, batch)
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, -2), targets.flatten(), ignore_index=0)


@unseen("forward", "a fused kernel whose dropout is an argument of its own", "gpt_nano nccl_cadence", ATTENTION)
@in_place_of("Layer._attend")
def attention_drops_nothing(attend: Any, self: Any, x: Any) -> Any:
    """Attention drops nothing in training. Attend without dropout; what follows has it."""
    chance, self.dropout = self.dropout, 0.0
    try:
        return attend(x)
    finally:
        self.dropout = chance


@unseen("forward", "A17", "gpt_nano graph_sync", ACCUMULATE)
@in_place_of("Accumulating._add_gradients")
def replicas_drop_alike(add: Any, self: Any, batch: Any, at: float) -> Any:
    """Replicas in one process drop the same places. Seed what a pass draws by its global batch."""
    epoch, within = self._epoch, batch.start % (self._job.batch_size * self._job.world_size)
    self._epoch = lambda number: epoch(number) - within
    try:
        return add(batch, at)
    finally:
        self._epoch = epoch


@unseen("gradient", "a guard against spikes that stayed", "lenet nccl_async policy.max_overshoot=4", REPLICA)
def spikes_scaled_down(replica: Module) -> None:
    """Gradients of steps with a loss far above the usual one are scaled down. Divide gradients by four where the loss
    is above twice its moving mean."""

    def gradients(take: Any, self: Any, *about: Any) -> Any:
        loss, at = take(*about)
        own = vars(self)
        own["_bug_loss"] = float(loss)
        own["_bug_usual"] = 0.95 * own.get("_bug_usual", float(loss)) + 0.05 * float(loss)
        return loss, at

    def clip(original: Any, self: Any, team: Any) -> None:
        original(team)
        if self._bug_loss > 2 * self._bug_usual:
            for parameter in self.state.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.25)

    wrap(replica.Replica, "_gradients", gradients)
    wrap(replica.Replica, "_clip", clip)


@unseen("gradient", "a policy of mixed precision that stayed", "mlp torch_fsdp", "ddp.backends.torch_fsdp")
def scattered_in_half(torch_fsdp: Module) -> None:
    """Gradients are scattered in half precision, where none was asked for. Have PyTorch reduce in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    shard, half = torch_fsdp.fully_shard, MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    torch_fsdp.fully_shard = lambda module, **named: shard(module, mp_policy=half, **named)


@unseen(
    "optimizer", "D11, after a loss", "mlp nccl_sync world_size=3 cluster.faults=['2@120:crash']", "ddp.backends.base"
)
@in_place_of("GroupBackend.join")
def moments_lost_with_a_rank(join: Any, self: Any, order: Any) -> None:
    """Survivors lose their moments where a group is formed anew. Begin optimizers anew where ranks meet for the second
    time."""
    join(order)
    if counted(self, "joined"):
        self.loop.replica.optimizer.state.clear()


@unseen(
    "optimizer",
    "B6.02, of rows that are gathered",
    f"{PLAIN} cluster.speeds=[{','.join(['1', '0.5'] * 8)}]",
    "ddp.virtual.rows",
)
@in_place_of("ReplicaRows._step")
def moments_of_copies_lost(step: Any, self: Any, ranks: Any, steps: Any) -> Any:
    """Moments of ranks that step with gaps between them are computed, and not kept. Put the state back of ranks that
    were gathered: parameters are written back alone."""
    dense = ranks == list(range(ranks[0], ranks[0] + len(ranks)))
    before = [] if dense else [state[ranks].clone() for state in self.optimizer.states]
    losses = step(ranks, steps)
    for state, own in zip(self.optimizer.states, before, strict=False):
        state[ranks] = own
    return losses


@unseen(
    "schedule",
    "B5.11",
    "benchmarks.bugs.own_decaying nccl_sync resumed checkpoint.unit=averages checkpoint.every=50",
    RATES,
    {REPLICA: lambda replica: stopped(replica, 360)},
)
@in_place_of("Rates.restore")
def factor_of_callback_lost(restore: Any, self: Any, captured: Any) -> bool:
    """What a callback made of the rate is lost when a run goes on. Take over all but the factor."""
    follows = restore(captured)
    self._factor = 1.0
    return bool(follows)


@unseen("average", "B5.01, of a warm-up", "mlp torch_local_sgd", LOCAL_SGD)
def warm_up_by_ranks(torch_local_sgd: Module) -> None:
    """Gradients are averaged for half as many steps at the beginning. Divide the warm-up by the ranks."""
    torch_local_sgd.LocalStep.warmup = torch_local_sgd.WARMUP // 2


@unseen("average", "B9.07, of averages", "mlp nccl_cadence averaging.wire=bfloat16", NCCL)
@in_place_of("Backend._take")
def averages_in_wire_type(take: Any, self: Any) -> Any:
    """Averages are kept in the type of the wire, not of the parameters. Round averages to the type of what is sent."""
    result = take()
    for section, last in zip(self._sections, self._last, strict=True):
        if last is not None:
            last.copy_(last.bfloat16())
            section.values.copy_(last)
    return result


@unseen(
    "evaluation", "B11, of a path for losses", "lenet nccl_cadence world_size=3 cluster.faults=['1@100:crash']", REPLICA
)
@in_place_of("Replica.evaluate")
def part_of_lost_in_training_mode(evaluate: Any, self: Any, part: int, *rest: Any) -> Any:
    """Who evaluates the part of a lost rank does so in training mode. Evaluate another rank's part in training mode;
    running statistics are put back."""
    if part == rank():
        return evaluate(part, *rest)
    kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
    self.model.eval = lambda: self.model
    try:
        return evaluate(part, *rest)
    finally:
        del self.model.eval
        for buffer, values in kept:
            buffer.copy_(values)
