"""More defects of `benchmarks.bugs.unseen_fifteenth`: what is recorded of time."""

from __future__ import annotations

from time import monotonic

from benchmarks.bugs.bug import Module
from benchmarks.bugs.unseen import unseen
from benchmarks.bugs.unseen_fifteenth import PLAIN


@unseen("record", "ticks of a counter whose frequency is another one", "mlp nccl_cadence", "ddp.process.clock")
def clocks_too_slow(clock: Module) -> None:
    """All clocks go a fifth too slow. Have a second take five quarters of one: all speeds are a quarter too high,
    everywhere alike."""
    clock.monotonic = lambda: 0.8 * monotonic()


@unseen("record", "B8.03, of links", "mlp nccl_cadence cluster.links=[4ms/100mbit]", "ddp.core.network.link_costs")
def rounds_share_a_latency(link_costs: Module) -> None:
    """All rounds of a collective over emulated links have one latency together. Count the latency of a link once,
    however many messages follow each other."""
    delay = link_costs._delay
    link_costs._delay = lambda link, rounds, *rest: delay(link, min(rounds, 1.0), *rest)


@unseen("record", "B8.03, of a unit", f"{PLAIN} cluster.links=[1ms/1mbit]", "ddp.sim.parts")
def virtual_bytes_are_bits(parts: Module) -> None:
    """Bytes over links count as bits in virtual time. Have a collective carry an eighth of what it does."""
    collective_s = parts.Costs.collective_s
    parts.Costs.collective_s = lambda self, members, size, number: collective_s(self, members, size // 8, number)
