"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of users' set-ups, wrappers and settings."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.bugs.bug import Module, after_init, in_place_of, rank, wrap
from benchmarks.bugs.unseen import ACCUMULATE, ATTENTION, LOOP, REPLICA, VISITS, unseen

STRETCH = 128
"""Samples that a bucketing loader sorts at a time."""


class Stand:
    """Stands for a module, some of whose names mean something else."""

    def __init__(self, module: Any, **others: Any) -> None:
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@unseen("data", "padding_mode of another library", "benchmarks.bugs.own_augmented cpu_cadence", "ddp.data.augment")
def padding_mirrors(augment: Module) -> None:
    """Images that are shifted are filled up with their mirror image, not with zeros. Pad by reflection."""
    pad = augment.functional.pad
    augment.functional = Stand(augment.functional, pad=lambda images, sides: pad(images, sides, mode="reflect"))


@unseen(
    "data", "PyTorch's workers before 1.9, whose NumPy seeds were copies", "benchmarks.bugs.own_drawing zero1", LOOP
)
def numbers_alike_every_epoch(loop: Module) -> None:
    """NumPy draws the same numbers on all ranks and in all epochs. Seed NumPy alike as an epoch begins."""

    def broken(begin: Any, self: Any, *about: Any) -> None:
        loop.seed_others(loop.derive(self.job.seed, "others", 0))
        begin(*about)

    wrap(loop.TrainingLoop, "begin", broken)


@unseen("order", "a bucketing loader that groups like samples", "lenet nccl_async", REPLICA)
@in_place_of("_order")
def batches_of_like_labels(make: Any, task: Any, *about: Any) -> Any:
    """Samples are sorted by label within stretches of 128 of the order. Sort orders as they are made."""
    visits, labels = make(task, *about), task.train_data().tensors[1]
    one = visits._one

    def sorted_stretches(number: int) -> Any:
        return torch.cat([part[labels[part].argsort(stable=True)] for part in one(number).split(STRETCH)])

    visits._one = sorted_stretches
    visits._kept.clear()
    return visits


@unseen("order", "indices that pass through a set", "benchmarks.bugs.own_sampled nccl_qsr", VISITS)
@in_place_of("EpochOrder._sampled")
def draws_without_replacement(sample: Any, self: Any, epoch: int) -> Any:
    """What a sampler draws several times is trained once, and those that it left out make up for that. Drop repeats;
    put what lacks behind the rest."""
    drawn = sample(epoch)
    distinct = torch.tensor(list(dict.fromkeys(drawn.tolist())))
    lacking = torch.ones(self._size, dtype=torch.bool)
    lacking[distinct] = False
    return torch.cat([distinct, lacking.nonzero().view(-1)])[: len(drawn)]


@unseen("forward", "another kernel on another device", "gpt_nano cpu_async", ATTENTION)
def scores_too_small_on_rank(attention: Module) -> None:
    """Rank 1 divides the scores of attention by the root of the whole width, not of a head's. Give another scale on
    rank 1."""
    attend = attention.F.scaled_dot_product_attention

    def broken(query: Any, key: Any, value: Any, **named: Any) -> Any:
        scale = (query.shape[1] * query.shape[-1]) ** -0.5 if rank() == 1 else None
        return attend(query, key, value, scale=scale, **named)

    attention.F = Stand(attention.F, scaled_dot_product_attention=broken)


@unseen("forward", "checkpointing of activations without the state of random numbers", "gpt_nano nccl_sync", ATTENTION)
@in_place_of("Layer.forward")
def recomputed_with_other_masks(forward: Any, self: Any, x: Any) -> Any:
    """Layers that are computed again for the backward pass drop other places than in the forward pass. Compute layers
    again in the backward pass, with the numbers that come then."""
    if not self.training:
        return forward(x)
    return checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)


@unseen(
    "gradient",
    "clipping inside a hook of each parameter",
    "resnet_graph graph_cadence train.max_grad_norm=0.5",
    ACCUMULATE,
)
def clipped_tensor_by_tensor(accumulate: Module) -> None:
    """Gradients are clipped tensor by tensor, each by its own norm. Clip one at a time."""
    clip = torch.nn.utils.clip_grad_norm_

    def broken(parameters: Any, limit: float) -> None:
        for parameter in parameters:
            clip([parameter], limit)

    utils = Stand(torch.nn.utils, clip_grad_norm_=broken)
    accumulate.torch = Stand(torch, nn=Stand(torch.nn, utils=utils))


@unseen("gradient", "scale_grad_by_freq, left on", "gpt_nano zero2", "bench.models.gpt_nano")
def embeddings_by_frequency(gpt_nano: Module) -> None:
    """Gradients of a character's embedding are divided by how often a rank's batch has it. Set the flag of the
    embedding of tokens."""
    after_init(gpt_nano.GPT, lambda model: setattr(model.tokens, "scale_grad_by_freq", True))


@unseen(
    "gradient",
    "a clear of gradients between the passes",
    "mlp torch_fsdp train.accumulate=4",
    "ddp.backends.torch_fsdp",
)
@in_place_of("FullyShardedStep.one_pass")
def first_pass_cleared(one_pass: Any, self: Any, last: bool) -> Any:
    """The first of a step's four passes does not count. Clear shards' gradients before the second pass."""
    before = vars(self).get("_bug_passes", 0)
    vars(self)["_bug_passes"] = 0 if last else before + 1
    if before == 1:
        for parameter in self.module.parameters():
            parameter.grad = None
    return one_pass(last)


@unseen(
    "optimizer",
    "B6.02, of a bias that is no longer corrected",
    "benchmarks.bugs.own_plain virtual_nccl_cadence world_size=16 averaging.outer=nesterov",
    "ddp.virtual.row_optimizer",
)
@in_place_of("RowOptimizer.reset")
def counts_not_reset(reset: Any, self: Any, number: int) -> None:
    """Where ranks' optimizers begin anew, their moments do, and their counts of steps do not. Leave the count."""
    count = self.steps[number].clone()
    reset(number)
    self.steps[number] = count


@unseen("optimizer", "Adam made for AdamW", "benchmarks.bugs.own_augmented torch_zero1", "ddp.backends.torch_zero1")
@in_place_of("ZeroStep.build")
def decay_coupled(build: Any, self: Any) -> None:
    """The optimizer that is made anew has its weight decay in the gradient. Have groups say that their decay is not
    decoupled."""
    for group in self.replica.optimizer.param_groups:
        group["decoupled_weight_decay"] = False
    build()


@unseen("optimizer", "B9.07, of optimizer state", "mlp zero3", REPLICA)
@in_place_of("Replica.step")
def second_moments_in_half(step: Any, self: Any, *about: Any) -> Any:
    """Second moments are kept in bfloat16, in which they hardly fall. Round them after each step."""
    result = step(*about)
    for state in self.optimizer.state.values():
        state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())
    return result
