"""The audit of one run: compares everything that ranks kept, item by item. Runs in its own process."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from bench.audit import reports
from bench.audit.audit_input import AuditOrder
from bench.audit.bundled.setups import settings_reached, setup
from bench.audit.costs import StepBytes, costs, step_bytes
from bench.audit.counters import LossScale, counted, resets, scales, updates
from bench.audit.delivered import delivered
from bench.audit.documented.reading import TrainingData, committed, content, made_as_by_rank, repeatable, unknowable
from bench.audit.documented.rules import Rules, left_out_roundings
from bench.audit.kept_files import Incomplete, Kept, KeptStep, Name, Parts, every, read, whole
from bench.audit.repeated import evaluation
from bench.audit.repeated.between import MOST_LINES, chains, ends, left_alone, rounded
from bench.audit.repeated.compare import (
    AT_ONCE,
    DEVICE_ROUNDING,
    SLACK,
    StepDifference,
    identical,
    losses_apart,
    ranks_apart,
    shake_of,
    states_apart,
)
from bench.audit.repeated.figures import counted_from, figures_apart, scalars_apart, weighed
from bench.audit.repeated.repeated_step import Bench
from bench.audit.repeated.rows import UNREPEATED, complete, is_complete, packed, redo, remembers, repeats, steps_of
from bench.audit.repeated.stretches import draws, stretches
from bench.audit.repeated.unkept import unkept
from bench.audit.state_digest import digest
from bench.results.audit_file import AuditItem, AuditReport
from ddp.replica.task import Task


def audit(order: AuditOrder) -> AuditReport:
    """Audit a run."""
    began = time.monotonic()
    task, model = made_as_by_rank(order.task, order.seed)
    kept = read(order.kept, order.recorded)
    auditor = _Auditor(order, task, model, kept)
    items = list(auditor.items())
    return AuditReport(
        run_id=order.run_id,
        params_sha256=auditor.final_sha256,
        seconds=round(time.monotonic() - began, 3),
        kept=list(order.recorded),
        items=items,
    )


class _Auditor:
    """One run, and a model on which its steps are repeated."""

    def __init__(self, order: AuditOrder, task: Task, model: nn.Module, kept: Kept) -> None:
        self._order, self._kept = order, kept
        whole = order.batch_size * order.world_size if task.drop_last else 1
        self._data = TrainingData(task, order.seed, order.augment if order.model else None, order.length, whole)
        self._unknowable = unknowable(task, self._data)
        self.final_sha256: str | None = None
        self._bytes: list[StepBytes] = []
        self._scales: dict[str, LossScale] = {}
        """File of a step or row that was confirmed -> the loss scale that it leaves."""
        self._unrepeated = False
        """Whether a repeated step gave another outcome each time."""
        self._loss = b"" if order.model else packed(task.loss)
        self._device = torch.device("cuda" if order.coarse and torch.cuda.is_available() else "cpu")
        limits = order.max_grad_norm, order.own_buffers, order.model, order.step, order.batch_size, order.own_batches
        rules = Rules(order.seed, order.epochs, len(self._data), order.lr_scale, *limits)
        self._bench = Bench(task, model, rules, self._data.batch, self._device)
        if not order.model:
            self._unknowable = self._unknowable or unkept(task.optimizer, self._bench.parameters.values())

    def items(self) -> Iterator[AuditItem]:
        """Yield the outcome of every comparison."""
        yield from self._contents()
        yield from self._initial()
        for name in self._kept.changed:
            yield AuditItem(
                what="step", outcome="different", line=f"{name} has another digest than the rank recorded", files=[name]
            )
        for name in self._kept.missing:
            yield AuditItem(what="step", outcome="skipped", line=f"{name} is missing", files=[name])
        groups = list(steps_of(self._kept.steps))
        for group in groups:
            yield self._step(group)
        yield from reports.judged(self._kept.steps, self._order.reports if self._order.numbered else ())
        yield from reports.rates(self._order, self._bench)
        yield from reports.resumed_rates(self._order, self._bench)
        yield from reports.in_turn(self._order, self._kept.steps)
        yield from weighed(self._order)
        yield from costs(self._order, self._bench, self._bytes)
        yield from setup(self._order, self._bench.task, self._data.sample())
        yield from settings_reached(self._order, self._bench.task, len(self._data.source))
        yield from self._positions(groups)
        # A user's model may, for example, count its calls in a buffer.
        moving = evaluation.moving(self._bench) if not self._order.model else set()
        yield from chains(self._order, self._kept.steps, moving)
        unknown = self._unknowable or self._unrepeated or moving
        yield from stretches(self._order, self._bench, () if unknown else list(filter(is_complete, groups)))
        yield from counted(self._order, self._kept.steps, lambda: not self._order.model and draws(self._bench))
        yield from resets(self._order, self._kept.steps, self._bench)
        yield from updates(self._order)
        yield from scales(self._order, self._kept.steps, self._scales)
        yield from left_alone(self._order, self._kept.averages, moving)
        yield from ends(self._kept.ends)
        yield from rounded(self._order, self._kept.ends)
        yield from delivered(self._order, self._kept.ends)
        yield from self._evaluations()

    def _contents(self) -> Iterator[AuditItem]:
        """Compare the data set with its committed digests."""
        known = committed(self._order.data) if self._order.model else None
        if known is None:
            return
        for part, source in (("train", self._data.source), ("test", self._bench.test_data)):
            own = content(source)
            line = (
                f"the {part} part of {self._order.data} has digest {own[:16]}, the committed one is {known[part][:16]}"
            )
            equal = own == known[part]
            yield AuditItem(what="data", outcome="equal" if equal else "different", line="" if equal else line)

    def _initial(self) -> Iterator[AuditItem]:
        """Compare the initial model of the run with the one that the seed gives."""
        if self._order.planned and not self._order.resumed and self._order.initial:
            made = digest(self._bench.initial)
            equal = made == self._order.initial
            line = f"ranks began with model {self._order.initial[:16]}, but the seed gives {made[:16]}"
            yield AuditItem(what="initial", outcome="equal" if equal else "different", line="" if equal else line)

    def _step(self, group: Sequence[KeptStep]) -> AuditItem:
        """Repeat a step, of one rank or of all ranks, and compare it."""
        first = group[0]
        about: dict[str, Any] = {"what": "step", "rank": first.rank, "epoch": first.epoch, "step": first.step}
        about["files"] = [each.file for each in group]
        try:
            if self._unknowable:
                raise Incomplete(self._unknowable)
            complete(group)
            apart, largest, scale = self._differences(group)
            if apart and not all(self._data.steady(first.epoch, *span) for each in group for span in each.batches):
                raise Incomplete("the data set gives different samples at each reading")
            if apart and not self._order.model:
                again = partial(redo, self._bench, whole(every(group, "before")), group)
                self._unrepeated |= not repeats(self._bench, again) or remembers(self._bench, again, self._loss)
            if self._unrepeated:
                raise Incomplete(UNREPEATED)
        except Incomplete as error:
            return AuditItem(**about, outcome="skipped", line=str(error))
        self._scales |= {each.file: scale for each in group if not apart}
        more = f"; and {len(apart) - MOST_LINES} more" if len(apart) > MOST_LINES else ""
        lines = "; ".join(map(str, apart[:MOST_LINES])) + more
        if apart and first.then:
            lines = f"{len(first.row)} steps from this one on: {lines}"
        return AuditItem(**about, outcome="different" if apart else "equal", line=lines, largest=largest)

    def _differences(self, group: Sequence[KeptStep]) -> tuple[list[StepDifference], float | None, LossScale]:
        before = whole(every(group, "before"))
        after = self._joined(group)
        again = partial(redo, self._bench, before, group)
        own, apart = again(), [*self._places(group), *ranks_apart(group, self._order.own_buffers)]
        ranks = [(each.rank, counted_from(self._order, each)) for each in group]
        self._bytes.append(step_bytes(before, own, ranks))
        for loss, mean in own.undefined:
            apart.append(StepDifference("loss by its definition", f"{loss:.6g}", f"{mean:.6g}", float("inf")))
        losses = [[loss for loss, (a, b) in zip(each.losses, each.batches, strict=True) if b > a] for each in group]
        if identical(after, own, losses):
            apart += figures_apart(self._order, self._bench, group, own, None)
            apart += scalars_apart(self._order, group, own, None, again)
            return apart, None if apart else 0.0, own.scale
        # The rounding errors of the steps add up.
        shake = DEVICE_ROUNDING if self._order.coarse else shake_of(list(self._bench.parameters.values()))
        least, more = (SLACK * shake, AT_ONCE) if group[0].at_once else (0.0, 1.0)
        off = cache(lambda number: again(shake * more * math.sqrt(len(group[0].row)), number + 1))
        shaken = off(0)
        rounding = left_out_roundings(self._order.step)
        for index, each in enumerate(group):
            at = f" of rank {each.rank}" if len(group) > 1 else ""
            shakes = partial(lambda index, number: off(number).losses[index], index)
            apart += losses_apart(losses[index], own.losses[index], at, rounding, shakes, least)
        states, largest = states_apart(after, before, own, shaken, rounding)
        apart += [*states, *figures_apart(self._order, self._bench, group, own, shaken)]
        apart += scalars_apart(self._order, group, own, shaken, again)
        return apart, None if apart else largest, own.scale

    def _joined(self, group: Sequence[KeptStep]) -> Mapping[Name, list[Any]]:
        after: dict[Name, list[Any]] = {}
        for name, part in every(group, "after"):
            if part.values is not None:
                after.setdefault(name, []).append(part)
        return after

    def _places(self, group: Sequence[KeptStep]) -> Iterator[StepDifference]:
        """Compare learning rates, and the samples that ranks believed seen, with the schedule."""
        first, samples = group[0], len(self._data)
        last = first.row[-1].seen
        rates = self._bench.rates(last)
        for each in group:
            # There is one rate per parameter group; another number of rates cannot belong to the task's optimizer.
            pairs = zip(each.rates, rates, strict=False)
            if len(each.rates) != len(rates) or any(abs(ours - again) > 1e-9 * abs(again) for ours, again in pairs):
                ours, again = (", ".join(f"{rate:.6g}" for rate in both) for both in (each.rates, rates))
                yield StepDifference(f"learning rate after {last:g} samples", ours, again, float("inf"))
        # Even after a loss, a step of all ranks counts the global batch.
        if not (first.together or (self._order.world_size == 1 and self._order.planned)):
            return
        for parts in zip(*(each.row for each in group), strict=True):
            start = min(start for part in parts for start, stop in part.work if stop > start)
            seen, planned = parts[0].seen, first.epoch * samples + start
            if abs(seen - planned) >= 1:
                yield StepDifference("samples seen before it", f"{seen:g}", f"{planned}", float("inf"))

    def _positions(self, groups: Sequence[Sequence[KeptStep]]) -> Iterator[AuditItem]:
        """Look for samples that several steps of an epoch trained. Those of a lost rank others train again, but none does
        its own; except in a step of all ranks, which they repeat."""
        whole = self._order.unbroken  # what ranks kept is of their last lives
        spans = sorted(
            {  # a step of a row may also have been kept alone
                (0 if whole else each.rank, each.epoch, start, stop, f"rank {each.rank}, step {each.step + number}")
                for group in groups
                for each in group
                if whole or not each.together
                for number, step in enumerate(each.row)
                for start, stop in step.work
                if stop > start
            }
        )
        for (*whose, _, stop, place), (*other, begin, _, there) in pairwise(spans):
            if whose == other and begin < stop:
                line = f"positions {begin} to {stop - 1} were trained by {place} and by {there}"
                yield AuditItem(what="positions", outcome="different", line=line, epoch=whose[1])

    def _evaluations(self) -> Iterator[AuditItem]:
        """Evaluate the final model again, and the models of earlier epochs."""
        order, figures = self._order, {epoch: recorded for epoch, *recorded in self._order.evaluations}
        reported = {(epoch, rank): (loss, metric) for epoch, rank, loss, metric in order.shown}
        shares = Counter((epoch, rank) for epoch, rank, *_ in order.shown)
        for epoch, kept in sorted(self._kept.evaluated.items()):
            about: dict[str, Any] = {"epoch": epoch, "files": [kept.file]}
            batches = self._kept.batches.get(epoch, {})
            if not order.planned and any(shares[epoch, rank] != 1 for rank in batches):
                continue  # a rank evaluated the part of a lost one, too, perhaps on a later average
            for rank, own in sorted(batches.items()):
                if line := evaluation.added_up(own, reported.get((epoch, rank), (None, None))):
                    yield AuditItem(what="evaluation", outcome="different", line=line, rank=rank, **about)
            if kept.whole:
                yield self._evaluation(kept.model, tuple(figures.get(epoch, (None, None))), **about)
            elif batches:
                start, stop, loss, metric = evaluation.spot(epoch, batches, order)
                means = tuple(None if total is None else total / (stop - start) for total in (loss, metric))
                yield self._evaluation(kept.model, means, spans=[(start, stop)], **about)
        yield self._evaluation(self._kept.final, (order.eval_loss, order.eval), final=True)

    def _evaluation(
        self,
        parts: Parts,
        recorded: tuple[float | None, ...],
        final: bool = False,
        spans: list[evaluation.Span] | None = None,
        **about: Any,
    ) -> AuditItem:
        try:
            state = whole((name, part) for name, each in parts.items() for part in each)
            if not state:
                raise Incomplete("the final model was not kept")
            self._bench.load(state)
        except Incomplete as error:
            return AuditItem(what="evaluation", outcome="skipped", line=str(error), **about)
        if final:
            self.final_sha256 = own = digest(state)
            wanted = self._order.params_sha256
            if wanted not in (None, own):
                line = f"the kept final model has digest {own[:16]}, recorded is {str(wanted)[:16]}"
                return AuditItem(what="evaluation", outcome="different", line=line)
        if not repeatable(self._bench.test_data):
            line = "the test set gives different samples at each reading"
            return AuditItem(what="evaluation", outcome="skipped", line=line, **about)
        line = evaluation.different(self._bench, self._order, (recorded[0], recorded[1]), spans)
        if line and not self._order.model and not evaluation.repeats(self._bench, self._order, spans):
            line = "each repetition of the evaluation gives another value"
            return AuditItem(what="evaluation", outcome="skipped", line=line, **about)
        return AuditItem(what="evaluation", outcome="different" if line else "equal", line=line, **about)
