"""Every rank trains: its samples enter the model, and its replica moves between two averages.

A tensor that moves, or has gradients, on one rank must do so on the others, over the run and in each epoch: ranks train
other samples of the same data. Movements below half a unit in the last place per step are ignored, as they may round to
none; and a loss of 0, as that of batches beyond a margin, has no gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.validate.records.run_records import Records
from bench.validate.sketches.linear import SAFETY, SINGLE, UNITS
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.messages.events import Averaged, Snapshot
from ddp.sketches import decode

MOST = 0.1
"""Fraction of a rank's rounds, or number 1, in which its replica may stand still though it reports steps: at the end of a
schedule the rate may be too small to change a number in single precision."""
FAINT = 1e-3
"""Rate, as a fraction of the highest, below which a window need not move: the last one may be a step at a millionth."""
FEW = 3
"""Least number of windows to compare a tensor with that of other ranks. It must move in nearly all of their windows
(`NEARLY`), as a sparse tensor may be unused in some."""
BY_CHANCE = 3.0
"""Standard errors by which the fractions of two ranks' steps without gradients may differ by chance."""
SLIGHT = 1e-4
"""Fraction of a step's largest gradient below which a gradient may be rounding, as that of a bias before a norm
layer."""
EACH, NEARLY = 8, 0.9
"""Least number of steps, over the run or an epoch, to compare gradients with another rank's, and fraction of the other
rank's steps that must have them. A tensor that is used at random, as in a model with branches, is used in nine of ten
steps on one rank and in none of eight on another once in 10^8."""
LONG = 100
"""Steps of an epoch in which a tensor with gradients must move. A tensor that has gradients in all of `FEW` drawn steps
has none in so many others by chance once in 10^6."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a rank that was not lost contributed nothing, or reports steps that moved nothing; REFUSED if an
    epoch or a step has too few samples for all ranks."""
    cell = case.cell
    count = 0
    for run, (looked_at, scarce) in case.each(_too_few):
        if scarce:
            return verdict("REFUSED", "idle", cell, f"seed {run.metrics.seed}: {scarce}")
        count += looked_at
    if failure := case.failure("idle", _amiss):
        return failure
    return verdict("PASS", "idle", cell, f"every rank of {plural(count, 'run')} trained") if count else None


def _too_few(run: Run, known: Records) -> tuple[bool, str]:
    """Return whether the run is looked at, and why it has too few samples for all ranks; empty: it has enough."""
    return (True, _scarce(run) or _narrow(run, known)) if _looked_at(run, known) else (False, "")


def _looked_at(run: Run, known: Records) -> bool:
    """Return whether ranks are to be compared, or movements of the model are recorded."""
    return run.metrics.world_size > 1 or bool(known.groups)


def _scarce(run: Run) -> str:
    """Say that an epoch has fewer than two batches for each rank, so some got none, and which batch size helps; empty:
    it has."""
    m = run.metrics
    samples = (m.ledger.samples if m.ledger is not None else None) or 0
    batches = -(-samples // m.batch_size)
    if not 0 < batches < 2 * m.world_size or all(_samples(run)):
        return ""
    # All windows of an epoch are cut alike: of six batches two windows have three each, and one of four ranks has none.
    most = (samples - 1) // (m.world_size - 1) if batches < m.world_size else samples // (2 * m.world_size)
    advice = f"a batch size of {most} gives each rank a batch" if most else "train with fewer ranks"
    number = "1 batch" if batches == 1 else f"{batches} batches"
    return f"an epoch of {samples} samples has {number} for {m.world_size} ranks, so some ranks train nothing: {advice}"


def _narrow(run: Run, known: Records) -> str:
    """Say that a step has too few samples to give each rank the minimum that its model needs, as batch norm does;
    empty: it has."""
    least, size = max((event.least for event in known.ready), default=1), run.metrics.batch_size
    if size >= least or all(_samples(run)):
        return ""
    return f"a rank needs {least} samples a step, so some ranks train nothing at batch size {size}: set {least} or more"


def _samples(run: Run) -> list[int]:
    """Return the samples in the model, by rank; ones if the run has no ledger."""
    m = run.metrics
    if m.ledger is None:
        return [1] * m.world_size
    return [sum(row.by_rank[rank] for row in m.ledger.epochs) for rank in range(m.world_size)]


def _amiss(run: Run, known: Records) -> str:
    """Name the rank that trained nothing, or a tensor that should have moved; empty: none."""
    m = run.metrics
    if not _looked_at(run, known):
        return ""
    for rank, samples in enumerate(_samples(run)):
        if not samples:
            return f"no sample of rank {rank} entered the model in the whole run"
    if not known.groups:
        return ""
    return _gradients(known, m.world_size) or _windows(known, m.world_size) or _epochs(known, m.world_size)


def _gradients(known: Records, world_size: int) -> str:
    """Name the rank without gradients, or without those of a tensor that others have; or a tensor with gradients that
    never moves."""
    trained = [number for number, group in enumerate(known.groups) if group.trained]
    sizes = [_sizes(known, rank)[:, trained] for rank in range(world_size)]
    nothing = [(own == 0).all(axis=1) for own in sizes]
    for rank, own in enumerate(nothing):
        if trained and _lacking(own, nothing[:rank] + nothing[rank + 1 :]):
            return f"rank {rank} reports steps, but {own.sum()} of its {len(own)} recorded gradients are zero"
    moves = _must_move(known)
    for place, number in enumerate(trained):
        name = known.groups[number].name
        if moves[number] and known.still(number) and any(_notable(own, MOST)[place] for own in sizes):
            return f"{name} has gradients, but its final value equals its initial value"
        lacking = [rank for rank, own in enumerate(sizes) if len(own) >= EACH and not own[:, place].any()]
        having = [
            rank for rank, own in enumerate(sizes) if lacking and len(own) >= EACH and _notable(own, NEARLY)[place]
        ]
        if having:
            count = len(sizes[lacking[0]])
            return f"rank {lacking[0]}: all of {count} gradients of {name} are zero, but not those of rank {having[0]}"
    return ""


def _must_move(known: Records) -> NDArray[np.bool_]:
    """Return which groups some recorded step must have changed by more than rounding: none at a rate of 0, few at a low
    rate in bfloat16, whose unit is a 512th of a value. The length of a step is rate times gradient in SGD, and in most
    other optimizers rate times the root of the number of elements."""
    first = next((event.sketch for event in known.ready if event.sketch), "")
    begun = decode(first).sizes if first else np.zeros(len(known.groups))
    units = np.array([max(UNITS.get(group.dtype, UNITS["float32"])[0], SINGLE) for group in known.groups])
    steps = [
        (report.lr, step) for report in known.progress for step in report.exchanged if step.samples and not step.model
    ]
    if not steps:  # earlier versions recorded no gradients
        return np.full(len(known.groups), any(report.lr for report in known.progress))
    most = np.sqrt([group.elements for group in known.groups])
    lengths = [rate * np.minimum(decode(step.before).sizes, most) for rate, step in steps]
    return np.asarray(np.max(lengths, axis=0) > SAFETY * units * begun)


def _lacking(own: NDArray[np.bool_], others: Sequence[NDArray[np.bool_]]) -> bool:
    """Return whether too many of a rank's steps have no gradients: all, or more than chance explains given the other
    ranks. A hinge loss has none for a batch beyond its margin, on all ranks alike."""
    if not len(own) or own.all():
        return bool(len(own))
    for other in filter(len, others):
        share = np.concatenate([own, other]).mean()
        error = np.sqrt(share * (1 - share) * (1 / len(own) + 1 / len(other)))
        if own.mean() - other.mean() > MOST + BY_CHANCE * error:
            return True
    return False


def _notable(sizes: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Return which groups exceed `SLIGHT` of the largest group in more than `share` of the rows (steps or windows)."""
    most = sizes.max(axis=1, keepdims=True, initial=0.0)
    notable: NDArray[np.bool_] = (sizes > SLIGHT * most).sum(axis=0) > share * len(sizes)
    return notable


def _sizes(known: Records, rank: int, epoch: int | None = None) -> NDArray[np.float64]:
    """Return the sizes of a rank's gradients, [sketched steps with samples, groups], without those of reports with a loss
    of 0; only of `epoch`, if given."""
    events = [e for e in known.progress if e.rank == rank and e.loss_sum != 0 and epoch in (None, e.epoch)]
    steps = [step for event in events for step in event.exchanged if step.samples and not step.model]
    return np.array([decode(step.before).sizes for step in steps]).reshape(len(steps), len(known.groups))


def _windows(known: Records, world_size: int) -> str:
    """Name the rank whose replica, or one tensor of it, did not move between averages though others' did."""
    moves = _must_move(known)
    trained = [number for number, group in enumerate(known.groups) if group.trained and moves[number]]
    windows_of = [_moved(known, rank) for rank in range(world_size)]
    moved = [_rows([each.way for each in own.values()], known)[:, trained] for own in windows_of]
    for rank, windows in enumerate(windows_of):
        still = sum(each.loss and not each.way[trained].any() for each in windows.values())
        if trained and still > max(MOST * len(windows), 1):
            return f"rank {rank} reports steps, but its replica did not move in {still} of {len(windows)} windows"
    for place, number in enumerate(trained):
        lacking = [rank for rank, windows in enumerate(moved) if len(windows) >= FEW and not windows[:, place].any()]
        having = [rank for rank, windows in enumerate(moved) if _notable(windows, NEARLY)[place]] if lacking else []
        if having:
            name, count = known.groups[number].name, len(moved[lacking[0]])
            return f"rank {lacking[0]}: {name} did not move in {count} windows, but did on rank {having[0]}"
    return ""


def _epochs(known: Records, world_size: int) -> str:
    """Name the tensor of a rank that did not move, or had no gradients, in a whole epoch, though it did on another
    rank."""
    windows = [_moved(known, rank) for rank in range(world_size)]
    trained = [number for number, group in enumerate(known.groups) if group.trained]
    for epoch in sorted({event.epoch for event in known.progress}):
        gradients = [_sizes(known, rank, epoch) for rank in range(world_size)]
        within = [{number: each for number, each in own.items() if each.epochs == {epoch}} for own in windows]
        for number in trained:
            for rank, other in permutations(range(world_size), 2):
                whose, name = f"rank {rank}, epoch {epoch}", known.groups[number].name
                if _without(gradients[rank], gradients[other], number):
                    count = len(gradients[rank])
                    return f"{whose}: all of {count} gradients of {name} are zero, but not those of rank {other}"
                common = sorted(within[rank].keys() & within[other].keys())
                own, theirs = ([each[at] for at in common] for each in (within[rank], within[other]))
                used = len(gradients[rank]) >= FEW and _notable_in(gradients[rank], number).all()
                if used and _stood(own, theirs, number):
                    return f"{whose}: {name} has gradients but did not move in {len(own)} windows, as it did on rank {other}"
    return ""


def _without(own: NDArray[np.float64], others: NDArray[np.float64], number: int) -> bool:
    """Return whether a group's gradients are zero in all steps of a rank and notable in nearly all of another's, of
    enough steps."""
    if min(len(own), len(others)) < EACH or own[:, number].any():
        return False
    return bool(_notable_in(others, number).mean() >= NEARLY)


def _notable_in(sizes: NDArray[np.float64], number: int) -> NDArray[np.bool_]:
    """Return in which steps a group exceeds `SLIGHT` of the largest."""
    notable: NDArray[np.bool_] = sizes[:, number] > SLIGHT * sizes.max(axis=1, initial=0.0)
    return notable


def _stood(own: Sequence[_Window], others: Sequence[_Window], number: int) -> bool:
    """Return whether a group stood still in all windows of a rank, of enough steps, and moved in all of another's."""
    if sum(each.steps for each in own) < LONG:
        return False
    return not any(each.way[number] for each in own) and all(each.beyond[number] for each in others)


class _Window(NamedTuple):
    """How a rank's replica moved between two averages."""

    way: NDArray[np.float64]
    """Distance that each group moved."""
    beyond: NDArray[np.float64]
    """The same, but 0 where rounding can explain it: half a unit of each value in each step."""
    steps: int
    epochs: set[int]
    loss: bool  # not 0


def _rows(rows: Sequence[NDArray[np.float64]], known: Records) -> NDArray[np.float64]:
    """Return [rows, groups]."""
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(known.groups))


def _moved(known: Records, rank: int) -> dict[int, _Window]:
    """Return round -> how far the groups moved, for each window with sketches and with steps at a rate that is not faint
    (a schedule may begin or end with a rate of 0)."""
    answers = {event.round: event for event in known.averaged if event.rank == rank and event.sketch_after}
    epochs: dict[int | None, set[int]] = defaultdict(set)
    for report in known.progress:
        if report.rank == rank:
            epochs[report.after].add(report.epoch)
    lossless = epochs.keys() - {each.after for each in known.progress if each.rank == rank and each.loss_sum != 0}
    least = FAINT * max((report.lr for report in known.progress), default=0.0)
    at_rate = {report.after for report in known.progress if report.rank == rank and report.lr > least}
    rested = {after for after in epochs.keys() - at_rate if after is not None}
    rested |= {after + 1 for after in rested}  # some optimizers, such as ASGD, use the rate of the step before
    units = np.array([UNITS.get(group.dtype, UNITS["float32"])[0] for group in known.groups])
    windows: dict[int, _Window] = {}
    last: Averaged | None = None
    laid = ""
    for number, parts in sorted(known.contributions().items()):
        event = parts.get(rank)
        own = "" if event is None else event.sketch if isinstance(event, Snapshot) else event.sketch_before
        if event is None or not own or number not in answers:
            continue
        if last is not None and last.round == number - 1 and event.steps and last.round not in rested:
            # What a rank trained during the last average moved its replica before it applied that average.
            way = np.maximum(_way(own, last.sketch_after), _way(laid, last.sketch_before))
            beyond = np.where(way > SAFETY * event.steps * units * np.nan_to_num(decode(own).sizes), way, 0.0)
            windows[number] = _Window(way, beyond, event.steps, epochs[last.round], last.round not in lossless)
        last, laid = answers[number], own
    return windows


def _way(first: str, second: str) -> NDArray[np.float64]:
    """Return the largest difference of each group's sums; 0 if it is not finite."""
    way: NDArray[np.float64] = np.nan_to_num(np.abs(decode(first).sums - decode(second).sums)).max(axis=1)
    return way
