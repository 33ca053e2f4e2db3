"""What the replicas do until they meet next: the policy's plan, followed by what the windows measure. Pure.

Policies are those of `ddp.core`: `sync` meets after every step, `cadence` (El Che) after as many batches of each replica as
its speed allows. In graph mode gradients meet, not parameters, so replicas never come apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ddp.core.allocation import fit
from ddp.core.commands import Plan
from ddp.core.events import RoundClosed
from ddp.core.policies import Policy
from ddp.core.spans import Span
from ddp.core.world import World
from ddp.graph.balance import Balance, cut, follow, start


@dataclass(frozen=True)
class Windows:
    """The state of the schedule. Methods return the next one."""

    policy: Policy
    world: World
    state: Any
    plan: Plan
    balance: Balance
    least: int
    """Fewest samples of a shard."""
    round: int = 0

    @staticmethod
    def start(policy: Policy, world: World, speeds: tuple[float, ...] | None, least: int) -> Windows:
        """Equal work for all, or by `speeds`. ValueError where these, or the policy's settings, do not fit the world."""
        state, plan = policy.init(world)
        return Windows(policy, world, state, plan, start(world.size, speeds), least)

    @property
    def windowed(self) -> bool:
        """Whether replicas run whole batches of their own until they meet, rather than shards of one."""
        return not self.plan.in_step

    def work(self, position: int, end: int) -> tuple[tuple[Span, ...], ...]:
        """The batches of each rank until they meet next, of the positions from `position` to `end`: consecutive, those of
        rank 0 first."""
        if not self.windowed:
            total = min(self.world.size * self.world.batch, end - position)
            sizes: list[tuple[int, ...]] = [(n,) if n else () for n in cut(total, self.balance.ratios, self.least)]
        else:
            left = -(-(end - position) // self.world.batch)
            weights = self.plan.weights or tuple(map(float, self.plan.counts))
            counts = fit(self.plan.counts, weights, left, self.plan.max_lead)
            sizes = [(self.world.batch,) * count for count in counts]
        work: list[tuple[Span, ...]] = []
        for mine in sizes:
            spans: list[Span] = []
            for size in mine:
                spans.append((position, min(position + size, end)))
                position = spans[-1][1]
            work.append(tuple(spans))
        return tuple(work)

    def cut(self, total: int, least: int) -> tuple[int, ...]:
        """Samples by rank of a batch that is divided."""
        return cut(total, self.balance.ratios, least)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Shares of the samples by rank, as they are planned."""
        if not self.windowed:
            return self.balance.ratios
        return tuple(count / sum(self.plan.counts) for count in self.plan.counts)

    def met(
        self,
        at: float,
        samples: tuple[int, ...],
        steps: tuple[int, ...],
        busy_s: tuple[float, ...],
        sync_s: float,
        lr: float = 0.0,
        seen: int = 0,
    ) -> tuple[Windows, tuple[Any, ...]]:
        """The replicas have met, after so much work of each, at this learning rate and so many samples; with it, what is to
        be recorded."""
        after = self.scattered(samples, busy_s)
        if not self.windowed:
            return after, ()
        nothing = (0.0,) * self.world.size
        wait_s = tuple(max(busy_s) - busy for busy in busy_s)
        starved = (False,) * self.world.size
        closed = RoundClosed(at, self.round, steps, busy_s, sync_s, wait_s, nothing, starved, lr=lr, samples=seen)
        state, said = self.policy.update(self.state, closed)
        plan = next((order for order in reversed(said) if isinstance(order, Plan)), self.plan)
        return replace(after, state=state, plan=plan, round=self.round + 1), (closed, *said)

    def scattered(self, samples: tuple[int, ...], busy_s: tuple[float, ...]) -> Windows:
        """The replicas have met after batches that the caller gave: only their throughput is followed."""
        return replace(self, balance=follow(self.balance, samples, busy_s))
