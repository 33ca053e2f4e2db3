"""Compares emulated links as set and as measured, in real processes over each transport.

    python -m benchmarks.links                # some two minutes
    python -m benchmarks.links --write        # and the table into reports/scale/links.md

The time of a collective is the shortest time of a rank in it, as the last rank to arrive waits for no other. The time
of a snapshot is from its sending until the coordinator's loop has it. The deviation is the median of measured / set
over the repetitions; with random jitter and losses, `set` is the value drawn for that repetition. Exit code 1 if a
deviation exceeds 5 %.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import torch

from benchmarks.frame import machine_load, options, run_command, table, write_report
from benchmarks.ranks import gather, lay_down
from ddp.comm.transports.base import TransportConfig
from ddp.comm.transports.choice import choose
from ddp.comm.transports.emulated import EmulatedTransport
from ddp.core.errors import OutOfResources
from ddp.core.messages.commands import RankCommand
from ddp.core.messages.events import Event, Ready, Snapshot, Tick
from ddp.core.network.link_costs import TO, Deliveries, collective_s
from ddp.core.network.links import Links, parse
from ddp.engine.delayed_ranks import DelayedRanks
from ddp.process.clock import now
from ddp.process.scratch import scratch

OFF = 0.05
"""Most that a measured time may be off from what was set."""
TRIALS = 20
SIZES = (1 << 10, 1 << 20)
"""Bytes."""
CELLS: tuple[tuple[str, int, str], ...] = (
    *(("memory", 2, link) for link in ("nvlink", "ib", "ethernet_10g", "home_100m", "wan_1g_30ms")),
    *(("gloo", 2, link) for link in ("ethernet_10g", "home_100m", "wan_1g_30ms")),
    ("memory", 4, "5ms/1gbit 0-1+2-3:wan_1g_30ms/shared"),
    ("memory", 4, "5ms/1gbit halving_doubling"),
    ("memory", 4, "5ms/1gbit tree"),
    *(("snapshots", 2, link) for link in ("ethernet_10g", "home_100m", "wan_1g_30ms")),
)
"""Transport, ranks, links."""


def links_of(words: str) -> Links:
    """Return the links that are written in `words`."""
    links = parse(words.split())
    assert links is not None
    return links


def collectives(folder: Path, rank: int, world: int, name: str, words: str, trials: int) -> None:
    """Lay down [sizes, trials, (arrival, end)] of a rank; or why such links are refused."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    inner = choose(name, TransportConfig(folder, rank, world, torch.device("cpu"), 60.0))
    transport = EmulatedTransport(inner, links_of(words))
    (folder / f"begun-{rank}").touch()
    while not all((folder / f"begun-{each}").exists() for each in range(world)):
        time.sleep(0.001)
    try:
        transport.join(range(world), 0)
    except OutOfResources as error:
        lay_down(folder, rank, str(error))
    else:
        found = torch.zeros(len(SIZES), trials, 2, dtype=torch.float64)
        for place, size in enumerate(SIZES):
            tensor = transport.empty(f"size{size}", size // 4, torch.float32).fill_(1.0)
            for trial in range(trials):
                time.sleep(0.002 * (trial * (rank + 3) % 5))
                arrival = now()
                transport.all_reduce(tensor.fill_(1.0))
                found[place, trial] = torch.tensor([arrival, now()], dtype=torch.float64)
        lay_down(folder, rank, found)
        inner.all_reduce(torch.zeros(1))
    transport.close()


class Sender:
    """A rank that has a snapshot to send whenever it is asked."""

    def __init__(self) -> None:
        self.events_sent: list[Event] = []

    def events(self, timeout_s: float) -> list[Event]:
        """Return what was sent."""
        sent, self.events_sent = self.events_sent, []
        if not sent:
            time.sleep(min(timeout_s, 0.001))
        return sent or [Tick(now())]

    def send(self, command: RankCommand) -> None:
        """Take no order."""

    def drop(self, rank: int) -> None:
        """Do nothing."""

    def restart(self, rank: int, life: int) -> None:
        """Do nothing."""


def snapshots(words: str, size: int, trials: int) -> list[tuple[float, float]]:
    """Return (set, measured) seconds of snapshots of rank 1 that come to the coordinator one by one."""
    links, sender, found = links_of(words), Sender(), []
    ranks, drawn = DelayedRanks(sender, links, lambda rank: size), Deliveries(links)
    ready = Ready(now(), 1, 8, 1, "same", "cpu", "memory")
    for trial in range(trials + 1):
        event: Event = ready if not trial else Snapshot(now(), 1, trial, 1, 8)
        due = drawn.due(1, size if trial else 0, TO, event.at)
        sender.events_sent.append(event)
        while not any(isinstance(each, type(event)) for each in ranks.events(0.5)):
            pass
        if trial:
            found.append((due - event.at, now() - event.at))
    return found


def measured(name: str, world: int, words: str, trials: int = TRIALS) -> list[list[tuple[float, float]]] | str:
    """Return (set, measured) seconds of every repetition, by size; or why such links are refused."""
    if name == "snapshots":
        return [snapshots(words, size, trials) for size in SIZES]
    with scratch() as folder:
        ranks = gather(folder, collectives, [(rank, world, name, words, trials) for rank in range(world)])
    if isinstance(ranks[0], str):
        return ranks[0]
    times, links = torch.stack(ranks), links_of(words)
    taken = (times[..., 1] - times[..., 0]).amin(0).tolist()
    members = tuple(range(world))
    return [
        [(collective_s(links, members, size, 1 + place * trials + k), taken[place][k]) for k in range(trials)]
        for place, size in enumerate(SIZES)
    ]


def off(pairs: Sequence[tuple[float, float]]) -> float:
    """Return how far what is measured is off from what was set, in the median."""
    return median(taken / planned for planned, taken in pairs) - 1


def rows_of(cell: tuple[str, int, str], found: list[list[tuple[float, float]]] | str) -> list[list[str]]:
    """Return the rows of a cell."""
    name, world, words = cell
    about = [name, str(world), words.replace(" ", ", ")]
    if isinstance(found, str):
        return [[*about, "any", "refused: predicted only", "", ""]]
    means = [[f"{1e3 * fmean(times):.3f}" for times in zip(*pairs, strict=True)] for pairs in found]
    each = zip(SIZES, means, map(off, found), strict=True)
    return [[*about, f"{size:,}", *both, f"{100 * apart:+.2f} %"] for size, both, apart in each]


def main() -> int:
    """Run the command; its exit code."""
    asked = options(__doc__, "write the table into reports/scale/links.md").parse_args()
    rows: list[list[str]] = []
    wrong = 0
    for cell in CELLS:
        found = measured(*cell)
        wrong += sum(abs(off(pairs)) > OFF for pairs in found) if isinstance(found, list) else 0
        rows += rows_of(cell, found)
        print(rows[-1], flush=True)
    if asked.write:
        text = (__doc__ or "").split("\n\n")[2]
        about = f"# Links, set and measured\n\n    python -m benchmarks.links --write\n\n{text}"
        heads = ["over", "ranks", "links", "bytes", "set, ms", "measured, ms", "off, median"]
        write_report("scale/links.md", about, machine_load(), table(rows, heads))
    return int(wrong > 0)


if __name__ == "__main__":
    run_command(main)
