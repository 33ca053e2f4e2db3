"""Scripted slowness reaches the right rank at the right step, and ends when the script says so. The check compares a
rank's reports before and after that step.

Waiting after steps, late batches and slow transfers are known to a factor of about two. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import median

from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from ddp.core.settings.faults import LASTING, Fault, parse

FEW, STEPS = 5, 128
"""Least number of reports, and of steps, between two faults of a rank to judge that stretch."""
LEAST, MOST = 3.0, 1.6
"""Factors by which waiting may be shorter or longer than it should be."""
CLOCK = 0.05
"""Tolerance in seconds."""
IN_PASSES = ("zero2", "zero3")
"""Backends that communicate inside the forward or backward pass."""
SHORTER = 0.9
"""Factor by which emulated steps of a given time may be shorter."""
NOTABLE = 0.5
"""Least delay that is looked for, as a fraction of a step, or of the time that a link needs."""


@dataclass(frozen=True)
class _OwnReport:
    """One report of a rank: steps `first` to `last` - 1, mean seconds per step by kind, and slowdown of its link."""

    first: int
    last: int
    whole: float
    data: float
    data_alone: float
    """`data` without waiting for a core."""
    compute: float
    """Compute time with emulated slowness, without waiting for a core."""
    slowed: float
    link: float
    """0: not measured."""


@dataclass(frozen=True)
class _Stretch:
    """The reports of a rank between two of its scripted faults, and how slow the script makes it there."""

    fault: str
    """The fault that begins the stretch; empty: the beginning of the run."""
    steps: float
    late: float
    """Delay of each batch, as a fraction of a step."""
    link: float
    reports: Sequence[_OwnReport]

    @property
    def count(self) -> int:
        """Number of reported steps."""
        return sum(report.last - report.first for report in self.reports)

    @property
    def long(self) -> bool:
        """Whether it has enough reports to be judged."""
        return len(self.reports) >= FEW and self.count >= STEPS

    @property
    def data(self) -> float:
        """Median seconds per step until its batch arrived."""
        return median(report.data for report in self.reports)

    @property
    def compute(self) -> float:
        """Median compute seconds per step, with emulated slowness."""
        return median(report.compute for report in self.reports)

    @property
    def transfer(self) -> float | None:
        """Median time of a transfer, as a multiple of what its link needs; None: too few measurements."""
        ratios = [report.link for report in self.reports if report.link]
        return median(ratios) if len(ratios) >= FEW else None


def as_long(due: float, worked: float, waited: float) -> bool:
    """Return whether steps of a given time took the `due` seconds. Work that needs longer is not waited after."""
    return worked + waited >= SHORTER * due - CLOCK and waited <= due + CLOCK


def other_than_scripted(m: Metrics, known: Records, speeds: Sequence[float], step_s: float) -> str:
    """Name the scripted slowness that did not happen, or at another time; empty: none. `step_s`: emulated seconds of a
    step at speed 1, 0 for none."""
    script = [parse(text) for text in m.scripted_faults]
    for rank in sorted({fault.rank for fault in script if fault.kind in LASTING}):
        resident = next((event.loader == "resident" for event in known.ready if event.rank == rank), False)
        speed = float(speeds[rank]) if rank < len(speeds) else 1.0
        stretches = list(_stretches(_reports(known, rank), [fault for fault in script if fault.rank == rank], speed))
        for stretch in stretches:
            if wrong := _waited(stretch, m.backend in IN_PASSES, step_s) or _late(stretch):
                return (
                    f"rank {rank}, {f'from {stretch.fault} on' if stretch.fault else 'before its first fault'}: {wrong}"
                )
        for before, after in pairwise(stretches):
            if wrong := _change(before, after, resident):
                return f"rank {rank}: {wrong}, so the scripted {after.fault} did not occur then"
    return ""


def _reports(known: Records, rank: int) -> Iterator[_OwnReport]:
    """Iterate over the reports of a rank, without the first one, whose first step takes a hundred times as long."""
    slowed, place, done = sorted(known.slowed[rank]), 0, 0
    for event in known.progress:
        if event.rank != rank or event.work is None or not event.steps:
            continue
        waited = 0.0
        while place < len(slowed) and slowed[place][0] < event.at:
            waited, place = waited + slowed[place][1] - slowed[place][0], place + 1
        work, steps = event.work, event.steps
        first, done = done, done + steps
        if first:
            whole, data = (work.data + work.compute) / steps, work.data / steps
            alone, compute = (work.data - work.no_core_data) / steps, (work.compute - work.no_core) / steps
            yield _OwnReport(first, done, whole, data, alone, compute, waited / steps, work.link)


def _stretches(reports: Iterator[_OwnReport], faults: Sequence[Fault], speed: float) -> Iterator[_Stretch]:
    """Cut the reports of a rank at its faults; reports that contain a fault are left out."""
    own, steps, late, link, begin, name = list(reports), 1 / speed - 1, 0.0, 1.0, 0, ""
    for fault in [*sorted(faults, key=lambda fault: fault.step), None]:
        end = inf if fault is None else fault.step
        inside = [report for report in own if begin <= report.first and report.last <= end]
        if end > begin:
            yield _Stretch(name, steps, late, link, inside)
        if fault is None:
            return
        begin, name = fault.step, str(fault)
        match fault.kind:
            case "slow":
                steps = (1 + steps) * fault.value - 1
            case "input":
                late = (1 + late) * fault.value - 1
            case "link":
                link *= fault.value
            case "heal":
                steps, late, link = 1 / speed - 1, 0.0, 1.0


def _waited(stretch: _Stretch, within: bool, step_s: float) -> str:
    """Say that the rank waited longer or shorter after its steps than it should; empty: it did not. `within`: its
    passes contain communication, which is slowed down with them, including time waiting for other ranks."""
    waited = sum(report.slowed * (report.last - report.first) for report in stretch.reports)
    worked = sum(report.whole * (report.last - report.first) for report in stretch.reports) - waited
    if step_s:
        due = (1 + stretch.steps) * step_s * stretch.count
        return (
            "" if as_long(due, worked, waited) else f"{stretch.count} steps took {worked + waited:.3g} s of {due:.3g} s"
        )
    least = 0.0
    if stretch.steps:
        if not stretch.long:
            return ""
        alone = median(
            each.compute - each.slowed + (0.0 if stretch.late else each.data_alone) for each in stretch.reports
        )
        least = stretch.steps * alone * stretch.count / LEAST - CLOCK
    if least <= waited <= (inf if within and stretch.steps else stretch.steps * worked * MOST + CLOCK):
        return ""
    return (
        f"it waited {waited:.3g} s after {stretch.count} steps of {worked:.3g} s, which should take "
        f"{1 + stretch.steps:.3g} times as long"
    )


def _late(stretch: _Stretch) -> str:
    """Say that batches or transfers were not as late as they should be; empty: they were."""
    least = stretch.late * stretch.compute / LEAST if stretch.late >= NOTABLE and stretch.long else 0.0
    if least and stretch.data < least - CLOCK / stretch.count:
        return f"a batch took {stretch.data:.3g} s, but should be late by {LEAST * least:.3g} s"
    transfer = stretch.transfer if stretch.link - 1 >= NOTABLE else None
    if transfer is not None and transfer < 1 + (stretch.link - 1) / LEAST:
        return (
            f"a transfer took {transfer:.3g} times what its link needs, but should take {stretch.link:.3g} times that"
        )
    return ""


def _change(before: _Stretch, after: _Stretch, resident: bool) -> str:
    """Say what did not change at a fault; empty: nothing. Only resident data is judged, as other batches may be late by
    themselves."""
    late, link = after.late - before.late, after.link - before.link
    if resident and abs(late) >= NOTABLE and before.long and after.long:
        turned, slow = after.data - before.data, after.compute if late > 0 else before.compute
        if turned * (1 if late > 0 else -1) < abs(late) * slow / LEAST - CLOCK / min(before.count, after.count):
            return f"a batch took {before.data:.3g} s, then {after.data:.3g} s"
    ratios = before.transfer, after.transfer
    if abs(link) < NOTABLE or ratios[0] is None or ratios[1] is None:
        return ""
    if (ratios[1] - ratios[0]) * (1 if link > 0 else -1) >= abs(link) / LEAST:
        return ""
    return f"a transfer took {ratios[0]:.3g} times what its link needs, then {ratios[1]:.3g} times"
