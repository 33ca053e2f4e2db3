"""Puts together what ranks kept of the same steps, and does a row of them again, each from where the one before ended.

Must not use the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from torch import Tensor

from bench.audit.again import Bench, Done, Work
from bench.audit.kept import KeptStep, Name

Step = tuple[int, Sequence[Work], float]
"""Epoch, positions of each rank's batches, samples seen before it."""


def redo(bench: Bench, before: Mapping[Name, Tensor], group: Sequence[KeptStep], shake: float = 0.0) -> Done:
    """Return what came of the steps that the ranks of `group` kept: the last state, all losses. `shake`: as of one step."""
    first, rows = group[0], zip(*(each.row for each in group), strict=True)
    steps = [(first.epoch, [part.work for part in parts], parts[0].seen) for parts in rows]
    return redo_all(bench, before, steps, shake, first.together, first.scale)


def redo_all(
    bench: Bench,
    before: Mapping[Name, Tensor],
    steps: Sequence[Step],
    shake: float = 0.0,
    together: bool = False,
    scale: tuple[float, int] = (1.0, 0),
) -> Done:
    """Return what came of steps, each from where the one before ended."""
    done: Done | None = None
    for epoch, ranks, seen in steps:
        state = before if done is None else done.after
        step = bench.step(state, epoch, ranks, seen, shake, together, scale)
        scale = step.scale
        done, shake = step if done is None else _joined(done, step), 0.0
    assert done is not None
    if len(steps) == 1:
        return done
    return replace(
        done, moves={name: done.after[name] - before[name].to(done.after[name].device) for name in done.moves}
    )


def _joined(first: Done, then: Done) -> Done:
    losses = [[*some, *more] for some, more in zip(first.losses, then.losses, strict=True)]
    norms, undefined = (*first.norms, *then.norms), (*first.undefined, *then.undefined)
    sizes = *first.gradient_bytes, *then.gradient_bytes
    metrics = tuple(some + more for some, more in zip(first.metrics, then.metrics, strict=True))
    return Done(losses, then.after, then.moves, undefined, then.scale, norms, sizes, metrics)


def steps_of(steps: Sequence[KeptStep]) -> Iterator[list[KeptStep]]:
    """Iterate over steps: each of one rank, or the parts of one that is of all, by rank."""
    shared: dict[tuple[float, ...], list[KeptStep]] = {}
    files: Counter[tuple[float, ...]] = Counter()
    for each in steps:
        if each.together:
            key = (each.epoch, each.seen, each.averages, len(each.row))
            files[*key, each.rank] += 1  # a row that was cut may be a step that was drawn alone
            shared.setdefault((*key, files[*key, each.rank]), []).append(each)
    alone = ([each] for each in steps if not each.together)
    for group in sorted(chain(alone, shared.values()), key=lambda group: (group[0].epoch, group[0].seen)):
        yield sorted(group, key=lambda each: each.rank)
