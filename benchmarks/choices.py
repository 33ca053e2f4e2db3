"""Measures, in virtual time, where the controller's decisions differ from its reference, and how far ranks are from
the schedule.

`python -m benchmarks.choices` prints tables behind docs/explanation/controller.md; `--write` puts the schedule's there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from statistics import mean
from typing import Any

from benchmarks.controller import LATENCY_S, STEP_S, WIRE_S, Case, closed, drawn, regret
from benchmarks.documents import put
from benchmarks.frame import options, table
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import PolicyEvent
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.windows import Lead, WindowPlanner, WindowState
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate

SPEEDS = ((1.0, 1.0), (1.0, 0.4), (1.0, 0.25, 0.25), (1.0, 0.9, 0.1), (1.0, 0.5, 0.7, 0.3))
SEEDS = range(3)
LEAD = 5
"""`max_batch_diff` of the comparison."""
MODES = {"blocking": True, "not blocking": False}


@dataclass(frozen=True)
class Stepwise(Cadence):
    """The reference's `max_batch_diff`: once speeds are known, what a count may change by at a time."""

    change: int = LEAD

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Any, ...]]:
        """As always, the counts held near those before."""
        after, said = super().update(state, event)
        if state.elche.calibrations < 1 or after.elche.counts == state.elche.counts:
            return after, said
        pairs = zip(after.elche.counts, state.elche.counts, strict=True)
        counts = tuple(max(old - self.change, min(new, old + self.change)) for new, old in pairs)
        after = replace(after, elche=replace(after.elche, counts=counts))
        plan = WindowPlanner.of(self, Lead()).plan(after, "stepwise")
        return replace(after, plan=plan), (*(one for one in said if not isinstance(one, Plan)), plan)


def deviation(played: Simulation) -> tuple[float, float]:
    """(largest, mean) distance of what a rank took for the samples seen from those that were, when a step began."""
    whole = played.world.samples * played.world.epochs
    ends = sorted((entry.stop, entry.batch.samples) for entry in played.trained)
    stops, seen = [stop for stop, _ in ends], [0, *accumulate(samples for _, samples in ends)]
    off = [abs(min(entry.seen, whole) - seen[bisect_right(stops, entry.start)]) for entry in played.trained]
    return max(off), mean(off)


def back(played: Simulation) -> int:
    """Steps for which a rank went back in the schedule."""
    ranks = [[entry.seen for entry in played.trained if entry.rank == rank] for rank in range(played.world.size)]
    return sum(later < former for seen in ranks for former, later in pairwise(seen))


def _schedule_table() -> str:
    rows = []
    for (samples, batch, epochs), blocking, policy in product(
        ((157, 8, 4), (1438, 16, 12)), MODES.values(), (Cadence(), Async())
    ):
        if blocking and isinstance(policy, Async):  # does what `cadence` does
            continue
        found = []
        for speeds, seed in product(SPEEDS, SEEDS):
            case = Case(tuple(STEP_S / 5 / speed for speed in speeds), blocking, jitter=0.3, seed=seed)
            world = World(len(speeds), samples, batch, epochs, blocking, in_step=False, deadline_s=1e6)
            costs = Costs(case.cost, latency_s=LATENCY_S, wire_s=WIRE_S, reduce_s=WIRE_S, report_s=2 * STEP_S)
            played = simulate(policy, world, costs=costs, tick_s=1e4)
            plans = [record for _, record in played.records if isinstance(record, Plan)]
            window = max(sum(plan.counts) + sum(plan.ahead) for plan in plans) * batch
            most, usual = deviation(played)
            found.append((most / window, most / samples / epochs, usual / samples / epochs, back(played)))
        worst, of_run, usual, backward = zip(*found, strict=True)
        name = f"{type(policy).__name__.lower()}, {'' if blocking else 'not '}blocking"
        assert not any(backward), "a rank went back in the schedule"
        rows.append([f"{samples * epochs:,}", name, f"{max(worst):.2f}", f"{max(of_run):.3f}", f"{mean(usual):.3f}"])
    headers = ["samples", "mode", "largest, in windows", "largest, of the run", "mean, of the run"]
    return table(rows, headers)


def _lost(case: Case, played: Simulation) -> float:
    """Part of the time that the ranks could have trained in, averages and all."""
    return regret(replace(case, wire_s=0.0), played)


def _floor_table() -> str:
    rows = []
    for wire_s, (mode, blocking) in product((0.0002, 0.002, 0.01), MODES.items()):
        cells = []
        for policy in (Cadence(), Cadence(min_anchor=1)):
            cases = [
                Case(drawn(size, spread, seed), blocking, jitter=0.2, wire_s=wire_s, windows=40, seed=seed)
                for size, spread, seed in product((2, 4), (1.2, 4.0), range(2))
            ]
            runs = [(case, case.play(policy)) for case in cases]
            averages = mean(len(closed(played)) for _, played in runs)
            cells += [f"{mean(_lost(*run) for run in runs):.2%}", f"{averages:.0f}"]
        rows.append([f"{wire_s * 1e3:g} ms", mode, *cells])
    headers = ["an average costs", "mode"]
    headers += [f"{what}, {floor}" for floor in ("initial anchor", "1") for what in ("lost", "averages")]
    return table(rows, headers)


def _lead_table() -> str:
    rules = {"none": Cadence(), "of the lead": Cadence(max_batch_diff=LEAD), "of the change": Stepwise()}
    rows = []
    for (name, policy), (mode, blocking) in product(rules.items(), MODES.items()):
        runs = []
        for spread, seed in product((1.2, 4.0), range(2)):
            case = Case(drawn(4, spread, seed), blocking, jitter=0.2, windows=40, seed=seed)
            runs.append((case, case.play(policy)))
        lead = max(max(window.steps) - min(window.steps) for _, played in runs for window in closed(played)[2:])
        rows.append([name, mode, lead, f"{mean(_lost(*run) for run in runs):.2%}"])
    headers = [f"limit of {LEAD} steps", "mode", "largest lead in a window", "lost"]
    return table(rows, headers)


TABLES: dict[str, Callable[[], str]] = {"schedule": _schedule_table, "floor": _floor_table, "lead": _lead_table}


if __name__ == "__main__":
    parser = options(__doc__, "put the schedule into docs/explanation/controller.md")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), help="these tables")
    made = {}
    asked = parser.parse_args()
    for name in asked.only:
        made[name] = TABLES[name]()
        print(made[name], end="\n\n", flush=True)
    if asked.write and "schedule" in made:
        put("explanation/controller.md", schedule=made["schedule"])
