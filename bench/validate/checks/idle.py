"""Every rank trains: it brings samples into the model, and between two averages its replica moves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.base.figures import plural
from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, recorded
from bench.validate.verdict import Verdict, verdict
from ddp.core.events import Averaged, Snapshot
from ddp.sketches import decode

MOST = 0.1
"""Share of a rank's rounds in which its replica may stand still though it reports steps: at the end of a schedule rates are
too small to change a number in single precision."""
FEW = 3
"""Steps or windows from which on a tensor is compared with that of other ranks: a sparse one may be unused in some."""
SLIGHT = 1e-4
"""Of the largest gradient of a step: smaller ones may be rounding, as that of a bias that a norm takes away again."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a rank that was not lost brought in nothing, or reports steps that moved nothing; REFUSED where an
    epoch has too few batches for all ranks."""
    cell = case.cell
    runs = [(run, known) for run, known in recorded(cell) if run.metrics.world_size > 1 or known.groups]
    for run, _ in runs:
        if scarce := _scarce(run):
            return verdict("REFUSED", "idle", cell, f"seed {run.metrics.seed}: {scarce}")
    for run, known in runs:
        if wrong := _amiss(run, known):
            return verdict("FAIL", "idle", cell, f"seed {run.metrics.seed}: {wrong}")
    return verdict("PASS", "idle", cell, f"every rank of {plural(len(runs), 'run')} trained") if runs else None


def _scarce(run: Run) -> str:
    """Say why some ranks had no batch, where an epoch has fewer than ranks, and what gives each one."""
    m = run.metrics
    samples = (m.ledger.samples if m.ledger is not None else None) or 0
    batches = -(-samples // m.batch_size)
    if not 0 < batches < m.world_size or all(_samples(run)):
        return ""
    most = (samples - 1) // (m.world_size - 1)
    advice = f"train.batch_size={most} gives each one" if most else "train with fewer ranks"
    number = "1 batch" if batches == 1 else f"{batches} batches"
    return f"an epoch of {samples} samples has {number} for {m.world_size} ranks, and some train nothing: {advice}"


def _samples(run: Run) -> list[int]:
    """Return samples in the model by rank; ones where nothing is known."""
    m = run.metrics
    if m.ledger is None:
        return [1] * m.world_size
    return [sum(row.by_rank[rank] for row in m.ledger.epochs) for rank in range(m.world_size)]


def _amiss(run: Run, known: Records) -> str:
    m = run.metrics
    for rank, samples in enumerate(_samples(run)):
        if not samples:
            return f"rank {rank} brought nothing into the model in the whole run"
    return _gradients(known, m.world_size) or _windows(known, m.world_size) if known.groups else ""


def _gradients(known: Records, world_size: int) -> str:
    """Say which rank had no gradients, or a tensor of it where others had them; or which tensor has them and never moves."""
    trained = [number for number, group in enumerate(known.groups) if group.trained]
    sizes = [_sizes(known, rank)[:, trained] for rank in range(world_size)]
    for rank, own in enumerate(sizes):
        none = int((own == 0).all(axis=1).sum())
        if trained and none > MOST * len(own):
            return f"rank {rank} reports steps, but {none} of {len(own)} gradients that were looked at are zero"
    used = [_notable(own) for own in sizes]
    for place, number in enumerate(trained):
        name = known.groups[number].name
        having = [rank for rank, use in enumerate(used) if use[place]]
        if having and known.still(number):
            return f"{name} has gradients, but ends as it began"
        lacking = [rank for rank, own in enumerate(sizes) if len(own) >= FEW and not own[:, place].any()]
        if lacking and any(len(sizes[rank]) >= FEW for rank in having):
            count = len(sizes[lacking[0]])
            return f"rank {lacking[0]}: all of {count} gradients of {name} are zero, but not those of rank {having[0]}"
    return ""


def _notable(sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the groups that are more than slight beside the largest, in more than a few steps or windows."""
    most = sizes.max(axis=1, keepdims=True, initial=0.0)
    notable: NDArray[np.bool_] = (sizes > SLIGHT * most).sum(axis=0) > MOST * len(sizes)
    return notable


def _sizes(known: Records, rank: int) -> NDArray[np.float64]:
    """Return the sizes of the gradients of a rank, [sketched steps with samples, groups]."""
    steps = [step for event in known.progress if event.rank == rank for step in event.exchanged if step.samples]
    return np.array([decode(step.before).sizes for step in steps]).reshape(len(steps), len(known.groups))


def _windows(known: Records, world_size: int) -> str:
    """Say which rank stood still between two averages, or a tensor of it that others moved."""
    trained = [number for number, group in enumerate(known.groups) if group.trained]
    moved = [_moved(known, rank)[:, trained] for rank in range(world_size)]
    for rank, windows in enumerate(moved):
        still = int((windows == 0).all(axis=1).sum())
        if trained and still > MOST * len(windows):
            return f"rank {rank} reports steps, but its replica did not move in {still} of {len(windows)} windows"
    for place, number in enumerate(trained):
        lacking = [rank for rank, windows in enumerate(moved) if len(windows) >= FEW and not windows[:, place].any()]
        having = [rank for rank, windows in enumerate(moved) if _notable(windows)[place]] if lacking else []
        if having:
            name, count = known.groups[number].name, len(moved[lacking[0]])
            return f"rank {lacking[0]}: {name} did not move in {count} windows, but did on rank {having[0]}"
    return ""


def _moved(known: Records, rank: int) -> NDArray[np.float64]:
    """Return how far the groups moved in each window in which a rank reports steps and of which sketches tell."""
    answers = {event.round: event for event in known.averaged if event.rank == rank and event.sketch_after}
    windows = []
    last: Averaged | None = None
    laid = ""
    for number, parts in sorted(known.contributions().items()):
        event = parts.get(rank)
        own = "" if event is None else event.sketch if isinstance(event, Snapshot) else event.sketch_before
        if event is None or not own or number not in answers:
            continue
        if last is not None and last.round == number - 1 and event.steps:
            # What was trained while the last average was under way moved the replica before that was applied.
            windows.append(np.maximum(_way(own, last.sketch_after), _way(laid, last.sketch_before)))
        last, laid = answers[number], own
    return np.array(windows, dtype=np.float64).reshape(len(windows), len(known.groups))


def _way(first: str, second: str) -> NDArray[np.float64]:
    """Return the largest difference of each group's sums; 0 where one is not finite."""
    way: NDArray[np.float64] = np.nan_to_num(np.abs(decode(first).sums - decode(second).sums)).max(axis=1)
    return way
