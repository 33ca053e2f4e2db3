"""Groups what ranks kept of the same step, and repeats rows of steps, each from the state that the one before left.

Must not use the engine.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from bench.audit.documented.seeds import seed_others
from bench.audit.kept_files import PARAMETERS, Incomplete, KeptStep, Name
from bench.audit.repeated.repeated_step import Bench, Done, Work, moved
from bench.audit.repeated.step_scalars import both
from ddp.replica.scalars import Scalars

Step = tuple[int, Sequence[Work], float]
"""(epoch, positions of each rank's batches, samples seen before it)."""
COARSE = 1e-3
"""Relative tolerance of losses of a step that is repeated where bits may differ."""
TRIES = 8
"""Number of repetitions."""
UNREPEATED = "the step depends on more than the seed of the run: each repetition gives another outcome"


def redo(
    bench: Bench, before: Mapping[Name, Tensor], group: Sequence[KeptStep], shake: float = 0.0, seed: int = 1
) -> Done:
    """Repeat the steps that the ranks of `group` kept; return the final state and all losses. `shake`, `seed`: as of
    `Bench.begin`."""
    first, rows = group[0], zip(*(each.row for each in group), strict=True)
    steps = [(first.epoch, [part.work for part in parts], parts[0].seen) for parts in rows]
    done = redo_all(bench, before, steps, shake, first.together, first.scale, seed)
    if not first.averaged:
        return done
    return replace(done, after={name: value for name, value in done.after.items() if name.kind != PARAMETERS})


def redo_all(
    bench: Bench,
    before: Mapping[Name, Tensor],
    steps: Sequence[Step],
    shake: float = 0.0,
    together: bool = False,
    scale: tuple[float, int] = (1.0, 0),
    seed: int = 1,
) -> Done:
    """Repeat steps, each from the state that the one before left. `shake`, `seed`: as of `Bench.begin`."""
    bench.begin(before, shake, seed)
    begun = before if len(steps) > 1 else {Name(PARAMETERS, n): p.detach().clone() for n, p in bench.parameters.items()}
    done: Done | None = None
    for epoch, ranks, seen in steps:
        step = bench.step(epoch, ranks, seen, together, scale)
        scale = step.scale
        done = step if done is None else _joined(done, step)
    assert done is not None
    after = bench.after()
    own = (Name(PARAMETERS, name) for name in bench.parameters)
    return replace(done, after=after, moves={name: after[name] - begun[name].to(after[name].device) for name in own})


def repeats(bench: Bench, again: Callable[[], Done]) -> bool:
    """Return whether repeated steps agree. They do not if a user's loss uses Python's or NumPy's generators or its own
    counter, as these follow from no seed of the run."""
    first: Done | None = None
    for seed in range(TRIES):  # a choice among few values may agree several times
        seed_others(seed)
        then = again()
        if first is not None and not _alike(first, then, bench.device.type != "cpu"):
            return False
        first = first or then
    return True


def packed(loss: Any) -> bytes:
    """Return a copy of a loss as it is now, for `remembers`; b"" if it cannot be copied, and so not be sent to ranks."""
    try:
        return bytes(cloudpickle.dumps(loss))
    except Exception:  # whatever a user's object raises
        return b""


def remembers(bench: Bench, again: Callable[[], Done], loss: bytes) -> bool:
    """Return whether a step depends on what the loss did before, which was something else on each rank. `loss`: what
    `packed` returned before it did anything."""
    if not loss:
        return False
    task, samples = bench.task, bench.rules.samples
    outcomes, size = list[Done](), min(bench.rules.batch_size, samples)
    for first in ((0, size), (samples - (size + 1) // 2, samples)):
        bench.task = replace(task, loss=pickle.loads(loss))
        try:
            with Scalars():
                bench.task.loss(bench.model, moved(bench.batch(*first), bench.device))
            outcomes.append(again())
        finally:
            bench.task = task
    usual, other = outcomes
    return not _alike(usual, other, bench.device.type != "cpu")


def _alike(first: Done, then: Done, coarse: bool) -> bool:
    """Return whether two repetitions agree; `coarse`: up to `COARSE`, where sums have no fixed order."""
    if coarse:
        pairs = zip(chain(*first.losses), chain(*then.losses), strict=True)
        return all(math.isclose(*pair, rel_tol=COARSE) for pair in pairs)
    # NaN counts as equal to NaN.
    states = zip(first.after.values(), then.after.values(), strict=True)
    return str(first.losses) == str(then.losses) and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in states)


def _joined(first: Done, then: Done) -> Done:
    losses = [[*some, *more] for some, more in zip(first.losses, then.losses, strict=True)]
    norms, undefined = (*first.norms, *then.norms), (*first.undefined, *then.undefined)
    sizes = *first.gradient_bytes, *then.gradient_bytes
    metrics = tuple(some + more for some, more in zip(first.metrics, then.metrics, strict=True))
    scalars = tuple(both(some, more) for some, more in zip(first.scalars, then.scalars, strict=True))
    return Done(losses, undefined, then.scale, norms, sizes, metrics, scalars)


def steps_of(steps: Sequence[KeptStep]) -> Iterator[list[KeptStep]]:
    """Iterate over steps: single steps of one rank, and steps of all ranks with the ranks' parts in order."""
    shared: dict[tuple[float, ...], list[KeptStep]] = {}
    files: Counter[tuple[float, ...]] = Counter()
    for each in steps:
        if each.together:
            key = (each.epoch, each.seen, each.averages, len(each.row))
            files[*key, each.rank] += 1  # a row that was cut may equal a step that was drawn alone
            shared.setdefault((*key, files[*key, each.rank]), []).append(each)
    alone = ([each] for each in steps if not each.together)
    for group in sorted(chain(alone, shared.values()), key=lambda group: (group[0].epoch, group[0].seen)):
        yield sorted(group, key=lambda each: each.rank)


def is_complete(group: Sequence[KeptStep]) -> bool:
    """Return whether all ranks' parts are available: of most steps they are deleted once they were compared."""
    try:
        complete(group)
    except Incomplete:
        return False
    return True


def complete(group: Sequence[KeptStep]) -> None:
    """Raise Incomplete for a step of several ranks of which not all parts were kept."""
    if not group[0].together:
        return
    if len({tuple((each.seen, each.total) for each in kept.row) for kept in group}) > 1:
        raise Incomplete(f"ranks {[each.rank for each in group]} kept different steps")
    for parts in zip(*(each.row for each in group), strict=True):
        at, total = 0, 0
        for start, stop in sorted(span for part in parts for span in part.work if span[1] > span[0]):
            if at not in (0, start):
                ranks = [each.rank for each in group]
                raise Incomplete(f"the parts of ranks {ranks} leave a gap before position {start}")
            at, total = stop, total + stop - start
        if total != parts[0].total:
            raise Incomplete(f"{total} of {parts[0].total} samples of the step were kept")
