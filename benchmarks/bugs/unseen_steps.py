"""The defects of `benchmarks.bugs.unseen` in how it is trained: gradients, optimizer, schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import Module, in_place_of, once_made, rank, wrap
from benchmarks.bugs.unseen import (
    ASYNC,
    CADENCE,
    GRAPH,
    NCCL,
    PACKED,
    RATES,
    REPLICA,
    SHARDS,
    SHARED,
    SOLO,
    SYNC,
    ZERO1,
    unseen,
)


@unseen("gradient", "a default taken for a wish", SOLO, REPLICA)
@in_place_of("Replica.__init__")
def clipped_by_default(make: Any, self: Any, job: Any, *made_of: Any) -> None:
    """Clip gradients where nobody asked for it."""
    make(replace(job, max_grad_norm=job.max_grad_norm or 1.0), *made_of)


@unseen("gradient", "C14", SYNC, PACKED)
@in_place_of("StepGradients.pack")
def last_gradient_late(pack: Any, self: Any, *weights: Any) -> None:
    """Send the last parameter's gradient before it has arrived: what lies there is that of the step before."""
    pack(*weights)
    view = self._storage.views[-1]
    own = view.clone()
    if hasattr(self, "late"):
        view.copy_(self.late)
    self.late = own


@unseen("gradient", "C24", SHARDS, ZERO1)
@in_place_of("Zero1.exchange")
def small_gradients_alone(exchange: Any, self: Any, batch: Any) -> None:
    """Have the owner of a bias step with its own gradient: the hook that reduces small ones never fires."""
    small = [shard for shard in self.shards if shard.parameter.dim() == 1 and shard.parameter.grad is not None]
    own = [shard.parameter.grad.reshape(-1)[shard.start : shard.stop].clone() for shard in small]
    exchange(batch)
    for shard, gradient in zip(small, own, strict=True):
        shard.values.grad = gradient


LOGGED = 50
"""Steps from one gradient that is kept for the log to the next."""


@unseen("gradient", "C22", CADENCE, REPLICA)
@once_made("Replica")
def gradient_kept_for_log(self: Any) -> None:
    """Keep every 50th gradient for the log, uncleared: it counts in the next step."""
    clear, steps = self.optimizer.zero_grad, 0

    def broken(**settings: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % LOGGED:
            clear(**settings)

    self.optimizer.zero_grad = broken


@unseen("gradient", "B9.05", GRAPH, SHARED)
@in_place_of("_meet")
def narrow_sum(meet: Any, flats: Any, highest: bool) -> None:
    """Add gradients up in bfloat16 where replicas share a process."""
    if not highest:
        for flat in flats:
            flat.copy_(flat.bfloat16())
    meet(flats, highest)


@unseen("optimizer", "D11", CADENCE, REPLICA)
@in_place_of("Replica.evaluate")
def moments_lost(evaluate: Any, self: Any, *part: Any) -> Any:
    """Make the optimizer anew behind every evaluation, without its moments."""
    figures = evaluate(*part)
    self.optimizer.state.clear()
    return figures


@unseen("optimizer", "D19", CADENCE, NCCL)
@in_place_of("Backend._take")
def correction_restarts(take: Any, self: Any) -> Any:
    """Count the steps of the bias correction from zero again behind every average, with moments as they are."""
    apart = take()
    for state in self.loop.replica.optimizer.state.values():
        if "step" in state:
            state["step"].zero_()
    return apart


@unseen("optimizer", "D17", "resnet_graph solo", REPLICA)
@once_made("Replica")
def decay_lost(self: Any) -> None:
    """Step without the weight decay that the optimizer was made with."""
    for group in self.optimizer.param_groups:
        group["weight_decay"] = 0.0


@unseen("optimizer", "B5.17", ASYNC, REPLICA)
@once_made("Replica")
def betas_of_another(self: Any) -> None:
    """Have rank 1 step with the moments' decay of another configuration."""
    for group in self.optimizer.param_groups if rank() == 1 else ():
        group["betas"] = (0.9, 0.99)


@unseen("optimizer", "B6.20", SHARDS, ZERO1)
@in_place_of("Zero1.exchange")
def shard_tail_unmoved(exchange: Any, self: Any, batch: Any) -> None:
    """Leave out the last elements of the first rank's shards: slices end at whole lines."""
    exchange(batch)
    gradient = self.shards[-1].values.grad if self.site.rank == 0 else None
    if gradient is not None:
        gradient[-(len(gradient) % 128) or -64 :] = 0.0


@unseen("schedule", "B5.15", SYNC, REPLICA)
def rate_by_epoch(replica: Module) -> None:
    """Advance the schedule once an epoch, by the outer loop."""
    wrap(replica.Replica, "fraction", lambda fraction, self, seen: fraction(seen // self.samples * self.samples))


@unseen("schedule", "B5.09", "lenet solo", REPLICA)
@in_place_of("Replica.fraction")
def horizon_too_far(fraction: Any, self: Any, seen: float) -> Any:
    """Count one epoch more in the schedule than is trained."""
    epochs = self._job.epochs
    return fraction(seen) * epochs / (epochs + 1)


@unseen("schedule", "B5.11", CADENCE, RATES)
@in_place_of("Rates.apply")
def rate_stale_on_rank(apply: Any, self: Any, fraction: float) -> Any:
    """Have rank 1 step with a rate that it looks up now and then, while it reports the one that is due."""
    told = apply(fraction)
    if rank() == 1:
        held = self._set = self._all(int(fraction * 10) / 10)
        for group, rate in zip(self._optimizer.param_groups, held, strict=True):
            group["lr"] = rate
    return told


@unseen("schedule", "B5.07", ASYNC, RATES)
def rate_with_floor(rates: Module) -> None:
    """Never let the schedule fall below a tenth."""
    wrap(rates.Rates, "_scheduled", lambda scheduled, self, fraction: max(scheduled(fraction), 0.1))


@unseen("schedule", "D13", SYNC, RATES)
def rate_warmed_up(rates: Module) -> None:
    """Warm up over the first twentieth of the samples, which is another recipe's."""
    wrap(
        rates.Rates,
        "_scheduled",
        lambda scheduled, self, fraction: scheduled(fraction) * min(fraction / 0.05 + 1e-3, 1),
    )
