"""Defects of learning rates: what a schedule counts, and what becomes of its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import AVERAGED, CADENCE, EVERY, RANKS, Family, Module, after_init, in_place_of, last, wrap

SCHEDULE = Family("schedule")
REPLICA, RATES, DISPATCH = "ddp.replica.replica", "ddp.replica.optim.learning_rates", "ddp.core.grants.dispatch"


@SCHEDULE.bug(REPLICA, "audit", RANKS, "the learning rate is multiplied by the number of ranks", "B5.05")
@in_place_of("Replica.__init__")
def rate_times_ranks(make: Any, self: Any, job: Any, *made_of: Any) -> None:
    make(replace(job, lr_scale=job.lr_scale * job.world_size), *made_of)


@SCHEDULE.bug(REPLICA, "audit", AVERAGED, "the schedule counts the rank's own samples", "B5.03")
@in_place_of("Replica.step")
def schedule_per_rank(step: Any, self: Any, batch: Any, seen: float) -> Any:
    own = vars(self).setdefault("own_samples", 0)
    self.own_samples = own + batch.samples
    return step(batch, float(own))


@SCHEDULE.bug(REPLICA, "audit", EVERY, "the schedule never moves", "B5.15")
def schedule_stuck(replica: Module) -> None:
    replica.Replica.fraction = lambda self, seen: 0.0


@SCHEDULE.bug(RATES, "audit", EVERY, "the schedule's answer never reaches the optimizer", "issue")
def rate_not_set(rates: Module) -> None:
    def apply(self: Any, fraction: float) -> float:
        self._set = [group["lr"] for group in self._optimizer.param_groups]
        return float(self._all(fraction)[0])

    rates.Rates.apply = apply


@SCHEDULE.bug(REPLICA, "audit", EVERY, "the schedule ends after half of the run", "B5.01")
def twice_as_fast(replica: Module) -> None:
    wrap(replica.Replica, "fraction", lambda fraction, self, seen: min(2 * fraction(seen), 1.0))


@SCHEDULE.bug(REPLICA, "audit", EVERY, "the schedule is asked once an epoch", "B5.15")
@in_place_of("Replica.fraction")
def once_an_epoch(fraction: Any, self: Any, seen: float) -> float:
    return float(fraction(seen // self.samples * self.samples))


@SCHEDULE.bug(REPLICA, "audit", EVERY, "the schedule is fifty batches ahead", "B5.09")
def ahead(replica: Module) -> None:
    wrap(replica.Replica, "fraction", lambda fraction, self, seen: fraction(seen + 50 * self._job.batch_size))


@SCHEDULE.bug(REPLICA, "audit", EVERY, "another peak than the optimizer's takes the place of its rate", "B5.07")
def other_peak(replica: Module) -> None:
    after_init(replica.Replica, lambda self: setattr(self.rates, "_own", [1.25 * rate for rate in self.rates._own]))


@SCHEDULE.bug(REPLICA, "audit", RANKS, "one rank keeps the rate that it began with", "B5.17")
def one_rank_stuck(replica: Module) -> None:
    wrap(replica.Replica, "fraction", lambda fraction, self, seen: 0.0 if last() else fraction(seen))


@SCHEDULE.bug(RATES, "audit", EVERY, "the rate that is reported is not the one that is set", "D15")
@in_place_of("Rates.apply")
def reported_otherwise(apply: Any, self: Any, fraction: float) -> float:
    reported = apply(fraction)
    for group in self._optimizer.param_groups:
        group["lr"] *= 0.5
    self._set = [group["lr"] for group in self._optimizer.param_groups]
    return float(reported)


@SCHEDULE.bug("ddp.core.worker", "rate", AVERAGED, "a rank's place in the schedule jumps back at every grant", "B5.13")
def place_jumps(worker: Module) -> None:
    def broken(receive: Any, self: Any, order: Any) -> Any:
        if isinstance(order, worker.Train):
            order = replace(order, seen=order.seen * 0.5)
        return receive(order)

    wrap(worker.Worker, "receive", broken)


@SCHEDULE.bug(
    "bench.models.parts",
    "audit",
    CADENCE,
    "a rate that is set never arrives",
    models=("mlp",),
    settings=("train.lr=0.004",),
)
def rate_hard_coded(parts: Module) -> None:
    made = parts.task_on
    parts.task_on = lambda data, build, optimizer, recipe, *how: made(
        data, build, optimizer, replace(recipe, lr=0.008), *how
    )
