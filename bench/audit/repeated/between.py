"""Compares the states between a rank's steps: each step must begin with what the step before it left.

Must not use the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from bench.audit.audit_input import AuditOrder
from bench.audit.kept_files import BUFFERS, PARAMETERS, KeptStep, Part, Parts
from bench.base.grouping import grouped
from bench.results.audit_file import AuditItem, Outcome

MOST_LINES = 3
"""Most differences of a step that a message names."""
LOSING = "regrouping ", "the start with ", "undoing step "
"""Prefixes of events that happen because a rank was lost, or joined."""
RESTING = "the evaluation", "checkpoint ", "the beginning of epoch "
"""Prefixes of events that a rank which was there before compares across only if it took no other's state meanwhile."""
FEWEST, ROUNDED = 256, 0.9
"""Fewest parameters to judge, and the fraction that must be exact in fewer bits: by chance one in 65,536 is."""


def chains(order: AuditOrder, steps: Sequence[KeptStep], moving: Collection[str] = ()) -> Iterator[AuditItem]:
    """Compare the state after each kept step with that before the rank's next one, except for `moving` buffers, which
    an evaluation in between changes."""
    if not _untaken(order):
        return
    for first, then in adjoining(steps):
        if then.before:
            # PyTorch sends the first rank's buffers to the others before an evaluation and before each step.
            yield _chained(first, then, not (order.own_buffers and then.rank), moving)


def adjoining(steps: Sequence[KeptStep]) -> Iterator[tuple[KeptStep, KeptStep]]:
    """Iterate over pairs of kept steps, or rows, of a rank that follow each other without an average in between."""
    begun = grouped(((step.rank, step.step), step) for step in steps)
    for first in steps:
        averages = first.averages + (len(first.row) if first.together else 0)
        for then in begun.get((first.rank, first.step + len(first.batches)), ()):
            if then.averages == averages:
                yield first, then


def _untaken(order: AuditOrder) -> bool:
    """Return whether no rank received another rank's state. A rank may do so after a loss or when it joins later."""
    return order.planned or not (order.waiting or order.moves)


def _chained(first: KeptStep, then: KeptStep, buffers: bool, moving: Collection[str]) -> AuditItem:
    apart = []
    for name, parts in then.before.items():
        if name.kind == BUFFERS and (not buffers or name.name in moving):
            continue
        for part, other in zip(parts, first.after.get(name, []), strict=False):
            if other.every == 1 and part.sha256 != other.sha256:
                apart.append(str(name))
        if name not in first.after:
            apart.append(f"{name} (new)")
    apart += [f"{name} (gone)" for name in first.after.keys() - then.before.keys()]
    line = f"{', '.join(apart[:MOST_LINES])}: changed since the step before" if apart else ""
    place = {"rank": then.rank, "epoch": then.epoch, "step": then.step}
    return AuditItem(
        what="chain", outcome="different" if apart else "equal", line=line, files=[first.file, then.file], **place
    )


def ends(known: Mapping[int, Parts]) -> Iterator[AuditItem]:
    """Compare the final modules of all ranks: the digests of the result may come from other memory than the modules."""
    first = min(known, default=0)
    for rank in sorted(known.keys() - {first}):
        apart = [
            str(name) for name, parts in known[rank].items() if _digests(parts) != _digests(known[first].get(name, []))
        ]
        line = f"{apart[0]} of its final model differs from rank {first}'s" if apart else ""
        yield AuditItem(what="chain", outcome="different" if apart else "equal", line=line, rank=rank)


def rounded(order: AuditOrder, known: Mapping[int, Parts]) -> Iterator[AuditItem]:
    """Look whether the parameters that ranks of a bundled model ended with are all exact in half the bits of their type, as
    they are if what came over a narrow wire was not added up in theirs."""
    for rank, parts in known.items() if order.model else ():
        singles = [part.values for name, each in parts.items() if name.kind == PARAMETERS for part in each]
        values = torch.cat([v for v in singles if v is not None and v.dtype == torch.float32] or [torch.empty(0)])
        values = values[values != 0]
        exact = int((values.bfloat16().float() == values).sum())
        if len(values) < FEWEST:
            continue
        coarse = exact > ROUNDED * len(values)
        line = f"{exact} of {len(values)} final parameters are exact in bfloat16: they were rounded" if coarse else ""
        yield AuditItem(what="average", outcome="different" if coarse else "equal", line=line, rank=rank)


def _digests(parts: Sequence[Part]) -> list[str]:
    return [part.sha256 for part in parts]


def left_alone(
    order: AuditOrder, entries: Sequence[Mapping[str, Any]], moving: Collection[str] = ()
) -> Iterator[AuditItem]:
    """Compare states before and after events that must not change them, except for `moving` buffers: averages must not
    change the optimizer's state; evaluations, checkpoints and regroupings must change nothing."""
    own = {f"{BUFFERS} {name}" for name in moving}
    joined = {entry["rank"] for entry in entries if LOSING[1] in entry.get("what", "")}
    for entry in entries:
        before, after = entry["before"], entry["after"]
        if order.own_buffers and entry["rank"]:
            before = {name: each for name, each in before.items() if not name.startswith(f"{BUFFERS} ")}
        what = entry.get("what") or f"the average of round {entry['round']}"
        lost = sorted(name for name in before.keys() - own if before[name] != after.get(name))
        line = ""
        if lost:
            name = lost[0] if lost[0].startswith((f"{PARAMETERS} ", f"{BUFFERS} ")) else f"optimizer state {lost[0]}"
            line = f"{name} {'is gone' if after.get(lost[0]) is None else 'changed'} after {what}"
        knowable = _untaken(order) and not (order.moves and what.startswith("step "))
        resting = all(event.startswith(RESTING) for event in what.split(" and "))
        rests = resting and order.untouched and not order.moves and entry["rank"] not in joined
        knowable = knowable or rests or what.startswith(LOSING)
        outcome: Outcome = "equal" if not lost else "different" if knowable else "skipped"
        yield AuditItem(what="average", outcome=outcome, line=line, rank=entry["rank"])
