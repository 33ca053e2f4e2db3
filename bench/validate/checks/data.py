"""Ranks trained and evaluated the contents of the data set, in the order of the seed, and report the losses of their
steps; no test sample is trained.

Ranks record sums of hashes of their data sets, read by index, and of the samples that they trained
(`ddp.data.contents`). The check compares both exactly, for each rank and for all together. It recomputes the orders
from seed and epoch. `visits` checks which indices were requested; this check, what arrived. A run that was resumed or
lost ranks records some samples of an epoch twice: then only single ranks are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.base.grouping import grouped, summed
from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.baselines.reference import Sets
from bench.validate.records.reading import lost_nobody
from bench.validate.records.run_records import Records
from bench.validate.rules.drawn_numbers import drawn_again
from bench.validate.rules.losses_of_ranks import Share, higher_loss, reported_otherwise
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.messages.event_parts import DataContent, SetContent, Trained
from ddp.core.messages.events import Merged, Progress, Ready
from ddp.core.messages.join_events import Joining
from ddp.permutation import visited
from ddp.tally import MODULUS, order_tally

LEAK = 0.01
"""Fraction of the test set that may also be in the training set by chance, or by a collector's mistake."""
FEW = 12
"""Samples from which on two epochs, or seeds, do not have the same order by chance: 12! is 479 million."""


def check(case: Case) -> Verdict | None:
    """Return FAIL at the first difference; SUSPICIOUS if much of the test set is trained and no baseline says so, if one
    rank's loss is higher than the others', or if NumPy's numbers repeat; None if no contents are recorded."""
    epochs, notes, leak, higher = 0, "", False, ""
    drawn = ""
    seeds: dict[int, int] = {}
    for run, each in case.each(_compared, case.sets, lost=True):
        if not each.recorded:
            continue
        seed = run.metrics.seed
        drawn = drawn or (f"seed {seed}: {each.drawn}" if each.drawn else "")
        if each.wrong:
            return verdict("FAIL", "data", case.cell, f"seed {seed}: {each.wrong}")
        if (first := each.order) is not None and seeds.setdefault(first, seed) != seed:
            line = f"seeds {seeds[first]} and {seed} train epoch 0 in the same order, whose digest is {first}"
            return verdict("FAIL", "data", case.cell, line)
        higher = higher or (f"seed {seed}: {each.higher}" if each.higher else "")
        epochs, notes = epochs + run.metrics.epochs_planned, each.notes
        leak = leak or each.leak
    if drawn or higher:
        return verdict("SUSPICIOUS", "data", case.cell, drawn or higher)
    line = f"in {plural(epochs, 'epoch')} ranks trained the samples of the data set, in the order of the seed{notes}"
    return verdict("SUSPICIOUS" if leak else "PASS", "data", case.cell, line) if epochs else None


class _Compared(NamedTuple):
    """What the records of a run say of its data."""

    recorded: bool = False
    wrong: str = ""
    """The first difference; empty: none."""
    drawn: str = ""
    """How NumPy's numbers repeat; empty: they do not."""
    higher: str = ""
    """The rank whose loss is higher than the others'; empty: none."""
    order: int | None = None
    """Digest of the order of epoch 0, if other seeds must have another one."""
    notes: str = ""
    leak: bool = False
    """Much of the test set is trained, and no baseline says so."""


def _compared(run: Run, known: Records, sets: Sets | None) -> _Compared:
    if not known.ready or (data := known.ready[0].data) is None:
        return _Compared()
    if wrong := next(_amiss(sets, run, known, data), ""):
        return _Compared(True, wrong, drawn_again(known))
    samples, whole = known.ready[0].samples, data.shuffled and lost_nobody(run.metrics)
    return _Compared(
        recorded=True,
        drawn=drawn_again(known),
        higher=higher_loss(known) if whole and samples == data.training.samples else "",
        order=_orders(known).get(0) if whole and samples >= FEW else None,
        notes=_notes(data),
        leak=sets is None and data.shared > LEAK * data.test.samples,
    )


def _notes(data: DataContent) -> str:
    notes = [f"; {_shared(data)}"] if data.shared else []
    for name, part in (("training", data.training), ("test", data.test)):
        if part.content is None:
            notes.append(f"; samples of the {name} set may differ at each reading, so only their order was compared")
        elif part.looked_at < part.samples:
            notes.append(f"; of the {name} set {part.looked_at} drawn samples were compared")
    return "".join(notes)


def _shared(data: DataContent) -> str:
    named = ", ".join(f"{test} is training sample {training}" for test, training in data.pairs)
    return f"the training set also contains {plural(data.shared, 'test sample')} (test sample {named})"


def _amiss(sets: Sets | None, run: Run, known: Records, data: DataContent) -> Iterator[str]:
    """Yield what is wrong, causes before their consequences."""
    events: list[Ready | Joining] = [*known.ready, *(event for event in known.joining if event.data is not None)]
    for event in events:
        if event.data != data:
            yield f"rank {event.rank} has other data than rank 0: {event.data} instead of {data}"
    if sets is not None:
        yield from _unlike(sets, data)
    yield from _by_rank(known)
    whole = lost_nobody(run.metrics)
    broken = set() if whole else _broken(run.metrics, known)
    yield from reported_otherwise(known, broken)
    if whole:
        if known.trained and not known.resumed and (untold := _untold(known)):
            yield untold
        yield from _together(known, data)
        yield from _in_order(run, known, data)
        yield from _evaluated(known, data.test)
    elif data.shuffled:
        yield from _by_ledger(run, known, data, broken)


def _unlike(sets: Sets, data: DataContent) -> Iterator[str]:
    if sets.shared is not None and data.shared > sets.shared:
        yield f"{_shared(data)}; in the baseline it contains {sets.shared}"
    for name, part, hashes in (
        ("training", data.training, sets.training_hashes),
        ("test", data.test, sets.test_hashes),
    ):
        if hashes is not None and part.content != hashes:
            yield f"the {name} set has the digest {part.content}, that of the baseline has {hashes}"


def _by_rank(known: Records) -> Iterator[str]:
    """Compare the samples that each rank trained in each epoch with those of the data set at the same indices."""
    ranks = grouped(((event.epoch, event.rank), event) for event in known.trained)
    for (epoch, rank), parts in sorted(ranks.items()):
        content, wanted = _total([part.content for part in parts]), _total([part.wanted for part in parts])
        if content != wanted:
            yield f"rank {rank}, epoch {epoch}: trained samples have the digest {content}, those of the data set {wanted}"
        placed, due = _total([part.placed for part in parts]), _total([part.placed_wanted for part in parts])
        if placed != due:
            what = f"the digest of samples and positions is {placed}, expected {due}"
            yield f"rank {rank}, epoch {epoch}: samples were trained at the wrong positions: {what}"


def _untold(known: Records) -> str:
    """Name the rank whose sums do not cover all samples of an epoch that it reports; empty: none."""
    counts = summed(((event.epoch, event.rank), event.samples) for event in known.progress)
    for sums in known.trained:
        counts[sums.epoch, sums.rank] -= sums.samples
    (epoch, rank), count = next(((key, count) for key, count in sorted(counts.items()) if count), ((0, 0), 0))
    whose = f"rank {rank}, epoch {epoch}"
    return f"{whose}: the content of {abs(count)} samples was recorded more than once or never" if count else ""


def _together(known: Records, data: DataContent) -> Iterator[str]:
    """Compare the samples that all ranks together trained in each epoch with the whole data set."""
    epochs = grouped((event.epoch, event) for event in known.trained)
    if not data.shuffled or known.ready[0].samples != data.training.samples:
        return  # a custom sampler may draw a sample twice
    labels = data.training.labels
    torn = known.torn()
    for epoch, parts in sorted(epochs.items()):
        if epoch in torn:
            continue
        content = _total([part.content for part in parts])
        if content is not None and content != data.training.content:
            yield f"epoch {epoch}: all trained samples have the digest {content}, the data set has {data.training.content}"
        counts = _labels(parts)
        compared = bool(counts) and bool(labels)  # those of a data set that differs at each reading are not known
        for label, (count, there) in enumerate(zip_longest(counts, labels, fillvalue=0) if compared else ()):
            if count != there:
                yield f"epoch {epoch}: label {label} was trained {count} times, the data set has it {there} times"


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) % MODULUS if len(known) == len(values) else None


def _labels(parts: Sequence[Trained]) -> list[int]:
    """Add up the label counts of all parts; [] if some are not known."""
    if not all(part.labels for part in parts):
        return []
    return [sum(counts) for counts in zip_longest(*(part.labels for part in parts), fillvalue=0)]


def _orders(known: Records) -> dict[int, int]:
    """Return epoch -> digest of its order, for epochs that are recorded exactly once."""
    orders: dict[int, int] = defaultdict(int)
    torn = known.torn()
    for event in (event for event in known.trained if event.epoch not in torn):
        orders[event.epoch] = (orders[event.epoch] + event.order) % MODULUS
    return orders


def _in_order(run: Run, known: Records, data: DataContent) -> Iterator[str]:
    if not data.shuffled:
        return
    length, before = known.ready[0].samples, dict[int, int]()
    for epoch, digest in sorted(_orders(known).items()):
        if before.setdefault(digest, epoch) != epoch and length >= FEW:
            yield f"epochs {before[digest]} and {epoch} have the same order of samples, whose digest is {digest}"
        wanted = visited(run.metrics.seed, epoch, data.training.samples, length)
        if digest != (seeds := order_tally(np.arange(length), wanted)):
            yield f"epoch {epoch}: the order of samples has the digest {digest}, that of the seed {seeds}"


def _broken(m: Metrics, known: Records) -> set[Share]:
    """Return the shares of lost ranks in epochs that they had begun before they came back for the last time, alone or as
    all began again; of a rank that never came back every one."""
    lost = {fault.rank for fault in m.faults} | set(m.begun_without)
    gone = {fault.rank for fault in m.faults if fault.back_s is None and not fault.earlier}
    again = max((event.at for event in known.resumed), default=-inf)
    back = {event.rank: max(event.at, again) for event in known.joined}
    events: list[Progress | Trained | Merged] = [*known.progress, *known.trained, *known.merged]
    own = (event for event in events if event.rank in lost)
    return {(e.epoch, e.rank) for e in own if e.rank in gone or e.at <= back.get(e.rank, again)}


def _by_ledger(run: Run, known: Records, data: DataContent, broken: Collection[Share]) -> Iterator[str]:
    """Compare, for each rank, what it trained in an epoch with what the ledger says entered the model; but not `broken`
    epochs, and those in which samples were trained again."""
    entered: dict[tuple[int, int], list[NDArray[np.int64]]] = defaultdict(list)
    trained = grouped(((event.epoch, event.rank), event) for event in known.trained)
    for merged in known.merged:
        entered[merged.epoch, merged.rank] += [np.arange(start, stop) for start, stop in merged.spans]
    length, torn = known.ready[0].samples, known.torn()
    for (epoch, rank), parts in sorted(trained.items()):
        places = np.concatenate(entered.get((epoch, rank), [np.arange(0)]))
        if (epoch, rank) in broken or epoch in torn or sum(part.samples for part in parts) != len(places):
            continue
        digest = sum(part.order for part in parts) % MODULUS
        wanted = visited(run.metrics.seed, epoch, data.training.samples, length)
        if digest != (due := order_tally(places, wanted[places])):
            yield f"rank {rank}, epoch {epoch}: its trained samples have the digest {digest}, those in the model {due}"


def _evaluated(known: Records, test: SetContent) -> Iterator[str]:
    if test.looked_at < test.samples:
        return
    epochs = grouped((event.epoch, event.hashes) for event in known.evaluated)
    for epoch, parts in sorted(epochs.items()):
        if (content := _total(parts)) is not None and content != test.content:
            yield f"epoch {epoch}: evaluated samples have the digest {content}, the test set has {test.content}"
