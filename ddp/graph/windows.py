"""The schedule: what each replica trains until the next reduction. Pure.

Owns the policy's state and the shares of a batch. Must not know models, threads or clocks. Policies are those of
`ddp.core`: with `sync`, gradients are reduced after every step; with `cadence` (El Che), after as many batches as the
replicas' speeds allow. Gradients are reduced, not parameters, so replicas never diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import RoundClosed
from ddp.core.policies import Policy
from ddp.core.samples.spans import Span
from ddp.core.settings.world import World
from ddp.core.window_sizes.allocation import fit
from ddp.graph.balance import Balance, cut, follow, start


@dataclass(frozen=True)
class Windows:
    """The state of the schedule. Its methods return a new state."""

    policy: Policy
    world: World
    state: Any
    plan: Plan
    balance: Balance
    least: int
    """Smallest number of samples in a shard."""
    round: int = 0

    @staticmethod
    def start(policy: Policy, world: World, speeds: tuple[float, ...] | None, least: int) -> Windows:
        """Return the schedule at the start: with equal work, or with work in proportion to `speeds`. Raises ValueError if
        these or the policy's settings do not fit `world`."""
        state, plan = policy.init(world)
        return Windows(policy, world, state, plan, start(world.size, speeds), least)

    @property
    def windowed(self) -> bool:
        """Return whether each replica trains whole batches between reductions, instead of a shard of every batch."""
        return not self.plan.in_step

    def work(self, position: int, end: int) -> tuple[tuple[Span, ...], ...]:
        """Return the batches of each rank until the next reduction, as consecutive spans from `position` to at most `end`,
        those of rank 0 first."""
        if not self.windowed:
            total = min(self.world.size * self.world.batch, end - position)
            sizes: list[tuple[int, ...]] = [(n,) if n else () for n in cut(total, self.balance.ratios, self.least)]
        else:
            left = -(-(end - position) // self.world.batch)
            weights = self.plan.weights or tuple(map(float, self.plan.counts))
            counts = fit(self.plan.counts, weights, left, self.plan.max_lead)
            sizes = [(self.world.batch,) * count for count in counts]
        stops = list(accumulate((size for batches in sizes for size in batches), initial=position))
        spans = iter([(start, min(stop, end)) for start, stop in pairwise(stops)])
        return tuple(tuple(islice(spans, len(batches))) for batches in sizes)

    def cut(self, total: int, least: int) -> tuple[int, ...]:
        """Return the number of samples of each rank in a batch of `total`: at least `least`, or none."""
        return cut(total, self.balance.ratios, least)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Return the planned fraction of the samples of each rank."""
        if not self.windowed:
            return self.balance.ratios
        return tuple(count / sum(self.plan.counts) for count in self.plan.counts)

    def close(
        self,
        at: float,
        samples: tuple[int, ...],
        steps: tuple[int, ...],
        busy_s: tuple[float, ...],
        sync_s: float,
        lr: float = 0.0,
        seen: int = 0,
    ) -> tuple[Windows, tuple[Any, ...]]:
        """Return (schedule after a window, records of it). `samples`, `steps` and `busy_s` are by rank; `lr` and `seen` are
        the learning rate and the samples trained at its end."""
        after = self.measure(samples, busy_s)
        if not self.windowed:
            return after, ()
        nothing = (0.0,) * self.world.size
        wait_s = tuple(max(busy_s) - busy for busy in busy_s)
        starved = (False,) * self.world.size
        closed = RoundClosed(at, self.round, steps, busy_s, sync_s, wait_s, nothing, starved, lr=lr, samples=seen)
        state, records = self.policy.update(self.state, closed)
        plan = next((record for record in reversed(records) if isinstance(record, Plan)), self.plan)
        return replace(after, state=state, plan=plan, round=self.round + 1), (closed, *records)

    def measure(self, samples: tuple[int, ...], busy_s: tuple[float, ...]) -> Windows:
        """Return the schedule after a pass that is no whole window: only the throughput is updated."""
        return replace(self, balance=follow(self.balance, samples, busy_s))
