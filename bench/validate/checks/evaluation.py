"""Every epoch is evaluated, on the whole test set, and with the model that all ranks share.

Ranks record the number of evaluated samples, the sum over their values, and a sketch of the model. Number and sum must
be the baseline's, the sum within `NEAR`; only the number, if samples may differ at each reading, or by how batches are
cut. The model must be the same on all ranks, and the average of the round that ended the epoch (or the mean of the
replicas, if ranks recorded these). The model of the last evaluation must be the final one. If no epoch may begin before
the one before is complete, each must be evaluated right at its end.
"""

from __future__ import annotations

from bench.base.grouping import grouped
from bench.results.runfolder import Run
from bench.validate.baselines.reference import Sets
from bench.validate.records.run_records import UNBLOCKED, Records
from bench.validate.sketches.linear import apart, mean
from bench.validate.sketches.state_copies import unlike
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.tally import MODULUS

NEAR, ROUGH = 1e-9, 1e-6
"""Relative tolerance of a sum in double precision that is split among ranks; and of one of samples whose hashes are right,
as large values may cancel."""
SEEN = 5
"""First version of results in which the samples of an epoch are counted up to its evaluation."""


def check(case: Case) -> Verdict | None:
    """Return FAIL at the first evaluation of other samples or another model; None if evaluations are not recorded."""
    failure, count = case.compared("evaluation", _compared, case.sets, mark=",")
    if failure or not count:
        return failure
    whose = "the baseline's test set" if case.sets else "the same test set"
    if any(counted for _, counted in case.each(_counted)):
        whose = f"as many samples as {whose} has (they may differ at each reading, so only their number was compared)"
    line = f"{count} evaluations used {whose} and the model that all ranks share"
    return verdict("PASS", "evaluation", case.cell, line)


def _compared(run: Run, known: Records, sets: Sets | None) -> tuple[str, int]:
    """Return what is wrong with an evaluation (empty: nothing), and the number of evaluations."""
    if not known.evaluated or any(event.content is None for event in known.evaluated):
        return "", 0
    return _unevaluated(run, known) or _misplaced(run, known) or _amiss(sets, run, known), run.metrics.epochs_planned


def _counted(run: Run, known: Records) -> bool:
    """Return whether the samples of the test set may differ at each reading, so that their number alone is compared."""
    data = known.ready[0].data if known.ready else None
    return data is not None and data.test.content is None


def _unevaluated(run: Run, known: Records) -> str:
    """Name an epoch that was not evaluated; a checkpoint that the run was resumed from may be of before the evaluation."""
    first = max((event.epochs for event in known.resumed), default=0)
    missing = {*range(first, run.metrics.epochs_planned)} - {event.epoch for event in known.evaluated}
    return f"epoch {min(missing)} was never evaluated" if missing else ""


def _misplaced(run: Run, known: Records) -> str:
    """Name an epoch that was not evaluated right at its end; empty: none. Not judged are resumed runs, results of earlier
    versions, and runs in which an epoch may begin before the one before is complete."""
    m, overlapping = run.metrics, any(plan.lookahead for plan in known.plans)
    if known.resumed or overlapping or m.backend == UNBLOCKED or m.schema_version < SEEN or not known.ready:
        return ""
    for row in m.epochs:
        if row.samples != (due := (row.epoch + 1) * known.ready[0].samples):
            return f"epoch {row.epoch} was evaluated after {row.samples} samples of the run, but ends after {due}"
    return ""


def evaluated(known: Records) -> dict[int, tuple[int, float]]:
    """Return epoch -> (samples, sum over their values) of its evaluation."""
    parts: dict[int, tuple[int, float]] = {}
    for event in known.evaluated:
        samples, content = parts.get(event.epoch, (0, 0.0))
        parts[event.epoch] = samples + event.samples, content + (event.content or 0.0)
    return parts


def _amiss(sets: Sets | None, run: Run, known: Records) -> str:
    parts = evaluated(known)
    first = next(iter(parts.values()))
    wanted = sets or Sets(training=0, evaluated=first[0], content=first[1])
    counted = _counted(run, known)
    for epoch, (samples, content) in sorted(parts.items()):
        if samples != wanted.evaluated:
            return f"epoch {epoch}: {samples} samples were evaluated, the test set has {wanted.evaluated}"
        apart, size = abs(content - wanted.content), max(abs(wanted.content), samples)
        if not counted and apart > NEAR * size and (apart > ROUGH * size or not _same_samples(sets, known, epoch)):
            sums = f"sum over their values {content:.9g}, expected {wanted.content:.9g}"
            return f"epoch {epoch}: the evaluated samples are not those of the test set ({sums})"
    return _models(known) if known.groups else ""


def _same_samples(sets: Sets | None, known: Records, epoch: int) -> bool:
    """Return whether hashes show that exactly the test set was evaluated."""
    data, hashes = known.ready[0].data, [event.hashes for event in known.evaluated if event.epoch == epoch]
    if data is None or data.test.content is None or data.test.looked_at < data.test.samples or None in hashes:
        return False
    own = sum(filter(None, hashes)) % MODULUS
    return own == data.test.content and (sets is None or sets.test_hashes == own)


def _models(known: Records) -> str:
    """Return how an evaluated model differs from the one that all ranks share, from the average of its round, or from
    the final model; empty: it does not."""
    groups, rounds = known.groups, known.evaluated_rounds()
    averages = {event.round: event.sketch_average or event.sketch_after for event in known.averaged}
    by_epoch = grouped((event.epoch, event) for event in known.evaluated)
    for epoch, events in sorted(by_epoch.items()):
        first = events[0].sketch
        for event in events[1:]:
            if far := unlike(groups, event.sketch, first):
                return f"epoch {epoch}: ranks {events[0].rank} and {event.rank} evaluated different models ({far})"
        own = [(1.0, event.own) for event in events]
        if all(text for _, text in own) and (far := apart(groups, first, mean(own), 2.0 * len(own) + 1)):
            return f"epoch {epoch}: the evaluated model is not the mean of the ranks' replicas ({far})"
        made = averages.get(rounds[epoch], "") if epoch in rounds else ""
        if far := unlike(groups, first, made):
            return f"epoch {epoch}: the evaluated model is not the average of round {rounds[epoch]} ({far})"
    last = by_epoch[max(by_epoch)][0].sketch if by_epoch else ""
    for end in known.finished:
        if far := unlike(groups, end.sketch, last):
            return f"rank {end.rank} ended with another model than the one evaluated last ({far})"
    return ""
