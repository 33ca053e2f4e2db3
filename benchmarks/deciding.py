"""Measures the cost of decisions: processor seconds for a run in virtual time, and microseconds per event, by policy
and number of ranks.

    python -m benchmarks.deciding                  # 8 and 4,096 ranks x 100 rounds
    python -m benchmarks.deciding --ranks 65536 --rounds 20 --policies sync
    python -m benchmarks.deciding --write          # and into docs/explanation/speed.md

Each cell runs in a process of its own, so that its peak memory can be read. The coordinator alone is timed on the
ranks' messages of a shorter run, including reading them and writing its orders: this is the time per event that ranks
lose on shared cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any, get_args

from bench.base.garbage import no_collections
from benchmarks import frame
from benchmarks.documents import put
from ddp.core.coordinator import Coordinator
from ddp.core.messages.events import Event
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.process.codec import decode, encode
from ddp.sim import Costs, Simulation

BATCH = 8
SPEEDS = 7
"""Ranks are of so many speeds, 1 % apart."""
SHORT = 20_000
"""Events, about, of the run that the coordinator alone is timed on."""
Row = dict[str, Any]


def simulation(policy: str, ranks: int, rounds: int) -> Simulation:
    """Return a run of one epoch, a step of each rank in a round, in collectives; `sync` averages inside the step."""
    world = World(ranks, rounds * ranks * BATCH, BATCH, 1, blocking=True, in_step=policy == "sync")
    settings = {} if policy == "sync" else {"anchor": 1, "max_anchor": 1}
    # A rank reports at the end of what it was granted, as real ones do whose steps are short.
    costs = Costs(lambda rank, step: 1 + rank % SPEEDS / 100, report_s=100.0 if policy != "sync" else 0.0)
    return Simulation(POLICIES[policy](**settings), world, costs, keep=False)


def cell(policy: str, ranks: int, rounds: int) -> Row:
    """Measure one run, and the coordinator alone."""
    began = time.process_time()
    with no_collections():
        played = simulation(policy, ranks, rounds).run()
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    decide = deciding(policy, ranks, max(SHORT // ranks // 3, 4))
    return {
        "policy": policy,
        "ranks": ranks,
        "rounds": rounds,
        "events": played.events,
        "seconds": seconds,
        "event_us": 1e6 * seconds / played.events,
        "decide_us": decide,
        "peak_mib": peak,
    }


def deciding(policy: str, ranks: int, rounds: int) -> float:
    """Return the microseconds that the coordinator takes for an event, from message to orders; the best of three plays."""
    # What is kept besides records, which steps are in each replica, is gigabytes of 65,536 ranks.
    played, events = simulation(policy, ranks, rounds), list[Event]()
    played.listen = lambda _, record: events.append(record) if isinstance(record, get_args(Event)) else None
    played.run()
    lines = [encode(event) for event in events]
    best = float("inf")
    for _ in range(3):
        coordinator = Coordinator.start(played.policy, played.world, 0.0)
        began = time.process_time()
        for line in lines:
            coordinator, outputs = coordinator.update(decode(line))
            for output in outputs:
                encode(output)
        best = min(best, time.process_time() - began)
    return 1e6 * best / len(events)


def table(rows: list[Row]) -> str:
    """Return the rows as a table."""
    lines = [
        "| policy | ranks x rounds | CPU s | µs per event, played | the coordinator alone, with messages | peak MiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = f"{row['seconds']:.1f} | {row['event_us']:.0f} | {row['decide_us']:.0f} | {row['peak_mib']:.0f}"
        lines.append(f"| {row['policy']} | {row['ranks']:,} x {row['rounds']} | {figures} |")
    return "\n".join(lines)


def main() -> int:
    """Run the command; its exit code."""
    parser = frame.options(__doc__, "write the table into the document")
    parser.add_argument("--policies", default="sync,cadence,async")
    parser.add_argument("--ranks", default="8,4096")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(cell(asked.cell[0], *map(int, asked.cell[1:]))))
        return 0
    rows = []
    for policy in asked.policies.split(","):
        for ranks in asked.ranks.split(","):
            words = [sys.executable, "-m", "benchmarks.deciding", "--cell", policy, ranks, str(asked.rounds)]
            rows.append(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout))
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if asked.write:
        put("explanation/speed.md", deciding=table(rows))
    return 0


if __name__ == "__main__":
    frame.run_command(main)
