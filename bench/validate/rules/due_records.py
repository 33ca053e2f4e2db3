"""Which records a run must have by its own settings: sketches of drawn steps and rounds, and checkpoints. Pure.

Only runs are judged that lost nobody and were not resumed. The draws and due times are recomputed here, except at their
borders. So a record is called wrong only if it has less than half of what is due, or of checkpoints whose time the clock
does not decide, less than nine of ten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from ddp.core.messages.commands import Save
from ddp.core.periodic.sketching import ENOUGH_S, draw
from ddp.core.settings.checkpoints import UNITS
from ddp.permutation import derive

ENGINES = "elche", "solo"
SKETCHED = (None, "nccl", "cpu", "zero1", "zero2", "zero3", "torch_ddp", "torch_zero1")
"""Backends that sketch the exchanges inside steps."""
DRAWN = 5
"""First version of results that draws steps in this way."""
STEPS, MOST = 100, 0.02
"""Mean number of steps that are drawn in a run besides the first one, and their fraction at most."""
LEAST = 4
"""Least number of due records to judge a run."""
SURE = 0.9
"""Fraction of the known time that has surely passed, as clocks of several hosts differ."""
CLOCK_S = 0.2
"""Seconds by which times of orders may be off."""
SPARE = 10
"""Number of due checkpoints of which one may be missing: an average counts when it is ordered, but is seen when it ends."""
LATER = 1.25
"""Factor, on top of a second, by which the time between checkpoints may exceed the setting: only the next event ends
it."""


def unsketched_steps(m: Metrics, known: Records) -> str:
    """Name the rank that sketched less than half of its drawn steps; empty: none."""
    models = any(each.model for event in known.progress for each in event.exchanged)
    drawn_here = m.engine in ENGINES and m.backend in SKETCHED and m.schema_version >= DRAWN
    if not drawn_here or models or not known.groups or not known.ready:
        return ""  # steps that exchange models record no gradients
    key, epochs = derive(m.seed, "sketched steps"), 1 + max((event.epoch for event in known.progress), default=0)
    part = min(STEPS / (epochs * -(-known.ready[0].samples // (m.batch_size * m.world_size))), MOST)
    for rank in range(m.world_size):
        own = [event for event in known.progress if event.rank == rank]
        drawn = {step for step in range(sum(event.steps for event in own)) if not step or draw(key, step) < part}
        sketched = drawn & {each.step for event in own for each in event.exchanged if not each.model}
        if len(drawn) >= LEAST and len(sketched) < len(drawn) / 2:
            return f"rank {rank} recorded sketches of {len(sketched)} steps, but {len(drawn)} were due"
    return ""


def unsketched_rounds(known: Records, sketched: set[int]) -> str:
    """Name the average that must have a sketch and has none: the first, evaluated ones, and most of those that are far
    apart in time, unless the run was resumed; empty: none."""
    averaged = {event.round for event in known.averaged}
    due = {0, *known.evaluated_rounds().values()} & averaged
    if missing := sorted(due - sketched):
        return f"round {missing[0]}: ranks recorded no sketch of an average that always has one"
    closed = {} if known.resumed else {event.round: event.at for event in known.closed}
    rounds = [number for number in closed.keys() & averaged if number and {number - 1, 0} <= closed.keys()]
    since = {number: SURE * (closed[number - 1] - closed[0]) for number in rounds}
    drawn = {number for number, seconds in since.items() if draw(0, number) * number * ENOUGH_S < seconds}
    if len(drawn) < LEAST or len(drawn & sketched) >= len(drawn) / 2:
        return ""
    return f"ranks recorded sketches of {len(drawn & sketched)} averages, but {len(drawn)} were due"


def unsaved(m: Metrics, known: Records, config: dict[str, Any]) -> str:
    """Say how many due checkpoints are missing, or which one was not due; empty: all but one in ten of them exist, or half
    of them where the clock decides when they are due, and none but them."""
    given, epochs = config.get("checkpoint"), (config.get("train") or {}).get("epochs")
    if not isinstance(given, dict) or not isinstance(epochs, int) or m.engine not in ENGINES or not known.ready:
        return ""
    every, unit, least = (given.get(name) for name in ("every", "unit", "spacing_s"))
    if not isinstance(every, int) or unit not in UNITS or not isinstance(least, int | float):
        return ""  # another version wrote it
    spacing = least * LATER + (least > 0)
    last, due = (0, max(event.at for event in known.ready)), 0
    for at, ended, averages in _marks(known):
        done = ended if unit == "epochs" else averages
        if ended < epochs and 0 < every <= done - last[0] and at - last[1] >= spacing:
            last, due = (done, at), due + 1
    indexes = {event.index for event in known.saved}
    spare = due / 2 + bool(indexes) if spacing else max(1, due / SPARE)
    if due >= 2 and len(indexes) < due - spare:
        return f"{len(indexes)} checkpoints were made, {due} were due by every={every} {unit}"
    if indexes and not every:
        return f"{len(indexes)} checkpoints were made, with checkpoint.every=0"
    return _early(known, least)


def _early(known: Records, least: float) -> str:
    """Name the checkpoint that was ordered sooner after the one before, or after the start, than `least` seconds; empty:
    none, or the run was told that it would be ended."""
    if known.endings:
        return ""
    ordered: dict[int, float] = {}
    for at, order in known.work:
        if isinstance(order, Save):
            ordered.setdefault(order.index, at)
    times = [max(event.at for event in known.ready), *ordered.values()]
    for index, before, at in zip(ordered, times, times[1:], strict=False):
        if at - before < SURE * least - CLOCK_S:
            return f"checkpoint {index} was ordered {at - before:.3g} s after the one before, with spacing_s={least:g}"
    return ""


def _marks(known: Records) -> Iterator[tuple[float, int, int]]:
    """Yield (time, complete epochs, averages) of each average and evaluation; both counts are lower bounds."""
    ends: dict[int, float] = {}
    for event in known.evaluated:
        ends[event.epoch] = max(event.at, ends.get(event.epoch, event.at))
    averages = [(event.at, event.round + 1) for event in known.closed] or list(_steps_of_all(known))
    for at, count in sorted([*averages, *((at, 0) for at in ends.values())]):
        yield at, sum(end <= at for end in ends.values()), count


def _steps_of_all(known: Records) -> Iterator[tuple[float, int]]:
    """Yield (time, steps that every rank has reported) at each report."""
    steps = dict.fromkeys((event.rank for event in known.progress), 0)
    for event in known.progress:
        steps[event.rank] += event.steps
        yield event.at, min(steps.values())
