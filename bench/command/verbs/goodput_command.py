"""The verb `goodput`: replays a history of failures in virtual time with each strategy of recovery, and compares
them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from time import monotonic

from bench.base.exitcodes import Exit
from bench.base.garbage import no_collections
from bench.base.number_format import plural
from bench.base.usage import usage, writable
from bench.base.writing import write_json
from bench.command.parser import Parser
from bench.goodput.closed_forms import daly
from bench.goodput.outages import DAY_S, RATES, Outage, drawn, mean_gap, read_trace, replayed, with_spares
from bench.goodput.replay import RESTART, Replay, ReplayCosts, replay, ways
from bench.goodput.table import ReplayedHistory, body, lines
from ddp.suggest import unknown

MOST_RANKS, MOST_HOURS = 1 << 17, 1e5
NODES = 400
"""Nodes of InfiniteHBD's trace."""
TOLD_S = 5.0
"""Seconds between two lines of progress."""
COSTS = {
    "step": "seconds of a step",
    "jitter": "fraction by which a step may take longer",
    "wire": "seconds of a collective",
    "save": "seconds to write a checkpoint",
    "restart": "seconds to restart all ranks",
    "start": "seconds to restart one rank",
    "regroup": "seconds to form a group",
    "copy": "seconds to copy the state to a peer or a snapshot",
}
"""Option -> description of the cost that it sets."""


def add(parser: Parser) -> None:
    """Add the arguments of the verb."""
    trace = "a JSON trace in the format of InfiniteHBD, or meta, llama3, bursts (default: llama3)"
    parser.add_argument("--trace", default="llama3", metavar="PATH|NAME", help=trace)
    parser.add_argument(
        "--nodes", type=int, help=f"nodes that the trace was recorded on (default: {NODES}, as InfiniteHBD's)"
    )
    parser.add_argument("--ranks", type=int, default=400, help="ranks, a node each (default: 400)")
    parser.add_argument("--hours", type=float, default=24.0, help="hours of training without failures (default: 24)")
    every = ",".join(ways())
    parser.add_argument(
        "--policies", default=every, metavar="A,B", help=f"ways of continuing after a failure (default: {every})"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random numbers (default: 0)")
    times = "speed up failures and repairs by this factor (default: 1; of a trace: all of it in --hours)"
    parser.add_argument("--compress", type=float, metavar="X", help=times)
    parser.add_argument(
        "--spares", type=float, default=0.05, help="spare machines, as a fraction of ranks (default: 0.05)"
    )
    parser.add_argument(
        "--replace", type=float, default=60.0, metavar="S", help="seconds until a spare takes over (default: 60)"
    )
    checkpoint = "training between checkpoints, seconds (default: Daly's)"
    parser.add_argument("--checkpoint", type=float, metavar="S", help=checkpoint)
    parser.add_argument("--window", type=int, default=ReplayCosts.window, help="steps between averages (default: 10)")
    for name, what in COSTS.items():
        default = _default(name)
        help = f"{what} (default: {default:g})"
        parser.add_argument(f"--{name}", type=float, default=default, metavar="S", help=help)
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write the result to this file, as JSON")


def _default(name: str) -> float:
    return float(getattr(ReplayCosts, name if name == "jitter" else f"{name}_s"))


def goodput(options: argparse.Namespace) -> Exit:
    """Replay the history with each strategy and print the table. Return INCONCLUSIVE if a strategy did not finish
    within ten times the hours. Raises UsageError."""
    with usage():
        _check(options)
        costs = _costs(options)
        outages, compress = _outages(options, costs)
        spares = round(options.spares * options.ranks)
    absences = with_spares(outages, spares, options.replace)
    gap = mean_gap(outages, costs.horizon_s)
    interval = options.checkpoint or daly(costs.save_s, min(gap, costs.horizon_s))
    with no_collections():
        replays = tuple(_played(dict.fromkeys(options.policies.split(",")), costs, absences, interval))
    failures = sum(outage.start < costs.hours * 3600 for outage in outages)
    about = Path(options.trace).name, options.seed, compress, failures, gap, spares, options.replace
    history = ReplayedHistory(*about, _away_s(options.replace, absences, replays), costs, replays)
    print("\n".join(lines(history)))
    if options.json is not None:
        with usage():
            write_json(options.json, body(history))
    return Exit.OK if all(each.finished for each in replays) else Exit.INCONCLUSIVE


def _played(names: Iterable[str], costs: ReplayCosts, absences: list[Outage], interval: float) -> Iterator[Replay]:
    for way in names:
        played = replay(way, costs, absences, interval, _teller(way, costs.hours))
        took = f"{played.hours:,.1f} h, {played.failures} failures"
        print(f"{way}: goodput {100 * played.goodput.goodput:.1f} %, {took}", file=sys.stderr, flush=True)
        yield played


def _away_s(replace_s: float, absences: Sequence[Outage], replays: Sequence[Replay]) -> float:
    """Return the mean seconds without a machine of the ranks that failed while `restart` was played."""
    end = max((3600 * each.hours for each in replays if each.way == RESTART), default=0.0)
    met = [absence.stop - absence.start for absence in absences if absence.start < end]
    return fmean(met) if met else replace_s


def _teller(way: str, hours: float) -> Callable[[float], None]:
    """Return a function of virtual seconds that prints them from time to time."""
    last = monotonic()

    def tell(seconds: float) -> None:
        nonlocal last
        if monotonic() - last > TOLD_S:
            last = monotonic()
            print(f"{way}: at {seconds / 3600:,.1f} h; without failures {hours:,.4g} h", file=sys.stderr, flush=True)

    return tell


def _outages(options: argparse.Namespace, costs: ReplayCosts) -> tuple[list[Outage], float]:
    """Return the outages, and the factor by which their rate is raised."""
    name, path = options.trace, Path(options.trace)
    if name not in RATES and ("/" in name or name.endswith(".json") or path.exists()):
        trace = read_trace(path, options.nodes or NODES)
        if options.nodes is None:
            print(f"{path}: taken as of {NODES} nodes, as InfiniteHBD's; give --nodes for another", file=sys.stderr)
        compress = options.compress or trace.days * DAY_S / (costs.hours * 3600)
        return replayed(trace, options.ranks, costs.horizon_s, compress, options.seed), compress
    compress = options.compress or 1.0
    return drawn(name, options.ranks, costs.horizon_s, compress, options.seed), compress


def _costs(options: argparse.Namespace) -> ReplayCosts:
    """Return the costs, with the hours of a whole number of windows. Raise ValueError if there is none."""
    own = {field.name: getattr(options, field.name.removesuffix("_s")) for field in fields(ReplayCosts)}
    costs = ReplayCosts(**own)
    window_h = costs.window * costs.step_s / 3600
    if window_h > costs.hours * (1 + 1e-9):
        window = f"a window of {plural(costs.window, 'step')} of {costs.step_s:g} s takes {window_h:.4g} h"
        raise ValueError(f"--hours {costs.hours:g}: {window}; give more hours, or a smaller --window or --step")
    return replace(costs, hours=costs.rounds * window_h)


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError for options out of range or in conflict."""
    for way in options.policies.split(","):
        if way not in ways():
            raise ValueError(unknown("policy", way, ways()))
    bounds = {"ranks": (2, MOST_RANKS), "hours": (1e-3, MOST_HOURS), "window": (1, 10_000), "nodes": (1, MOST_RANKS)}
    bounds = {name: bound for name, bound in bounds.items() if getattr(options, name) is not None}
    bounds |= {"step": (1e-3, 1e6), "spares": (0, 1), "replace": (0, 1e7), "jitter": (0, 10)}
    bounds |= {name: (0, 1e7) for name in COSTS if name not in bounds}
    for name, (least, most) in bounds.items():
        if not least <= getattr(options, name) <= most:
            raise ValueError(f"--{name} {getattr(options, name)}: give a number from {least:g} to {most:g}")
    for name in ("compress", "checkpoint"):
        if getattr(options, name) is not None and not 1e-9 <= getattr(options, name) <= 1e9:
            raise ValueError(f"--{name} {getattr(options, name):g}: give a number from 1e-9 to 1e9")
