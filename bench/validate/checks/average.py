"""Every average is the weighted mean of the ranks' contributions, and a rank keeps what it trained during the
averaging.

Ranks record random linear sketches of their states before and after an average (`ddp.sketches`). As sketches are
linear, the sketch of an average must be the weighted mean of the sketches of its contributions, tensor by tensor. The
tolerance is rounding (`bench.validate.sketches.linear`). The check finds replicas that were not averaged, wrong divisors and
weights, contributions that are stale, torn or of another rank, omitted buffers, updates that discard concurrent
training, and wrong changes of a rank's optimizer state. Elastic averages and outer optimizers are linear, too, and are
computed in the same way. The distances from the average that ranks report are compared with those of the sketches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.results.runfolder import Run
from bench.results.training_settings import micro_batches
from bench.validate.records.complete_rounds import unbroken
from bench.validate.records.reading import as_planned, lost_nobody
from bench.validate.records.run_records import Records
from bench.validate.rules.due_records import unsketched_rounds, unsketched_steps
from bench.validate.sketches import distances
from bench.validate.sketches.linear import UNITS, Combined, apart, combine, distance, mean
from bench.validate.sketches.outer_steps import OuterSteps
from bench.validate.sketches.resumption import most_ranks
from bench.validate.sketches.state_copies import resets
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.messages.event_parts import OptimizerSketch, SketchGroup, StepSketch
from ddp.core.messages.events import Averaged, Snapshot
from ddp.sketches import Sketch, decode

NARROW = {"bfloat16": 2.0**-9}
"""Wire type that is narrower than the sums -> its rounding, relative to the change since the last average."""
LOCAL = {"torch_local_sgd": (100, 4)}
"""Backends that average parameters inside a step, every few steps -> the first step with an average, and the period."""
FEW = 4
"""Roundings that are allowed beyond two for each rank: weighting, dividing, adding to the old value."""


def check(case: Case) -> Verdict | None:
    """Return FAIL at the first wrong average; None if no average is recorded."""
    failure, count = case.compared("average", _compared, lost=True, mark=",")
    if failure or not count:
        return failure
    line = f"{count} averages equal the weighted mean of the ranks' contributions"
    return verdict("PASS", "average", case.cell, line)


def _compared(run: Run, known: Records) -> tuple[str, int]:
    """Return what is wrong with the first wrong average (empty: none is), and the number of averages before it."""
    count = 0
    for wrong in _averages(run, known if lost_nobody(run.metrics) else unbroken(known)) if known.groups else ():
        if wrong:
            return wrong, count
        count += 1
    return "", count


def _averages(run: Run, known: Records) -> Iterator[str]:
    """Yield for each average that has sketches what is wrong with it; empty: nothing."""
    m, settings = run.metrics, run.config.get("averaging")
    if m.backend in LOCAL and not known.resumed:
        yield from _due(known, m.world_size, *LOCAL[m.backend])
    if as_planned(m) and (few := unsketched_steps(m, known)):
        yield few
    # Some backends add up the gradients of micro-batches before they exchange them, others afterwards.
    yield from _inside_steps(known, m.world_size, most_ranks(m) * micro_batches(run.config))
    if m.policy is not None and isinstance(settings, dict):
        rounds = _Rounds(known, settings, m.world_size)
        yield from rounds.judge()
        few = unsketched_rounds(known, rounds.sketched()) if lost_nobody(m) else ""
        yield from filter(None, (few, distances.amiss(known, settings)))


class _Rounds:
    """The averages of one run, in the order of their rounds."""

    def __init__(self, known: Records, settings: Mapping[str, Any], world_size: int) -> None:
        self._groups, self._settings, self._ranks = known.groups, settings, world_size
        self._parts = known.contributions()
        self._by_snapshot = bool(known.snapshots)
        self._answers: dict[int, list[Averaged]] = {}
        for event in known.averaged:
            self._answers.setdefault(event.round, []).append(event)
        first = next((event.sketch for event in known.ready if event.sketch), "")
        self._last: Sketch | None = decode(first) if first else None
        """The last average; None: not known."""
        self._outer = OuterSteps(settings, self._groups) if settings.get("outer", "none") != "none" else None
        self._began: OptimizerSketch | None = None

    @property
    def _roundings(self) -> float:
        return 2.0 * self._ranks + FEW

    def judge(self) -> Iterator[str]:
        """Yield what is wrong with each rank's average of each round; empty: nothing."""
        for number, answers in sorted(self._answers.items()):
            parts, whole = self._parts.get(number, {}), self._is_whole(number)
            idle = not any(self._weight(part) for part in parts.values())
            if not whole or (idle and self._by_snapshot):
                self._last = None
                if self._outer is not None:
                    self._outer.lost = True
            if not whole or idle:
                continue
            yield from self._round(answers, parts)
            self._last = decode(_average(answers[0]))

    def sketched(self) -> set[int]:
        """Return the rounds of which all sketches are recorded."""
        return {number for number in self._answers if self._is_whole(number)}

    def _is_whole(self, number: int) -> bool:
        parts = self._parts.get(number, {})
        return all(_sketch(part) for part in parts.values()) and all(e.sketch_after for e in self._answers[number])

    def _round(self, answers: list[Averaged], parts: Mapping[int, Snapshot | Averaged]) -> Iterator[str]:
        wanted = mean([(self._weight(part), _sketch(part)) for part in parts.values()])
        roundings, room = self._roundings, self._room(parts)
        known = room is not None
        if self._outer is not None:
            stepped = self._outer.step(wanted, self._last)
            known, roundings = known and stepped is not None, roundings * self._outer.growth
            if stepped is None and self._last is not None:
                self._outer.find(wanted, self._last, decode(_average(answers[0])))
            wanted = wanted if stepped is None else stepped
        passed: str | None = None
        for event in answers:
            where, average = f"round {event.round}, rank {event.rank}", _average(event)
            # An average that equals another rank's of the same round was compared already.
            if known and average != passed and (far := apart(self._groups, average, wanted, roundings, room or 0.0)):
                yield f"{where}: the average is not the weighted mean of the replicas ({far})"
                continue
            passed = average
            if event.rank in parts and (way := self._moved(event, parts[event.rank])):
                yield f"{where}: the replica did not move by the average minus its snapshot ({way})"
            else:
                wrong = self._optimizer(event, parts)
                yield f"{where}: {wrong}" if wrong else ""

    def _weight(self, part: Snapshot | Averaged) -> float:
        """Compute the weight as `ddp.core.settings.averaging` does, but not with its code: a check must not call what it
        checks."""
        gamma = self._settings.get("gamma", 1.0)
        return float(part.samples**gamma) if part.samples else 0.0

    def _room(self, parts: Mapping[int, Snapshot | Averaged]) -> float | None:
        """Return the error that a narrow wire may cause, as it carries differences from the last average; None: not
        known. The roundings of one value are independent, so the error grows with the root of their number."""
        unit = NARROW.get(self._settings.get("wire", "float64"))
        if unit is None or self._by_snapshot:
            return 0.0
        last = self._last
        if last is None:
            return None
        return sqrt(self._roundings) * unit * max(distance(decode(_sketch(part)), last) for part in parts.values())

    def _moved(self, event: Averaged, part: Snapshot | Averaged) -> str:
        """Return how far a replica is from its old state plus (average - contribution), times the elastic rate if one
        is set. Buffers of a rank that trained on may be the average instead: the sum could be a negative variance."""
        elastic = self._settings.get("elastic")
        if elastic is None and (event.sketch_before, event.sketch_after) == (_sketch(part), _average(event)):
            return ""  # the replica is the average
        ways = [1.0 if elastic is None or group.kind == "buffers" else float(elastic) for group in self._groups]
        way = np.array(ways)
        terms: list[tuple[float | NDArray[np.float64], Sketch]] = [
            (1.0, decode(event.sketch_before)),
            (way, decode(_average(event))),
            (-way, decode(_sketch(part))),
        ]
        far = apart(self._groups, event.sketch_after, combine(terms), 2 * FEW)
        if far and self._by_snapshot:
            added = np.array([float(group.kind != "buffers") for group in self._groups])
            terms = [(added, terms[0][1]), terms[1], (-way * added, terms[2][1])]
            far = far if apart(self._groups, event.sketch_after, combine(terms), 2 * FEW) else None
        return str(far) if far else ""

    def _optimizer(self, event: Averaged, parts: Mapping[int, Snapshot | Averaged]) -> str:
        """Return what is wrong with the state of the rank's own optimizer after the average; empty: nothing."""
        before, after = event.optimizer_before, event.optimizer_after
        if self._settings.get("optimizer_state"):
            return self._optimizer_mean(event, parts)
        if resets(self._settings):
            self._began = after if self._began is None else self._began
            return "" if after == self._began else "the state of the rank's optimizer was not reset"
        names = [name for name, _ in before]
        if names != [name for name, _ in after]:
            return (
                f"the rank's optimizer state had {_listed(before)} before the average and has {_listed(after)} after it"
            )
        for (name, old), (_, new) in zip(before, after, strict=True):
            if new != old and (far := apart([self._state(name)], new, combine([(1.0, decode(old))]), 1.0)):
                return f"the average changed the state of the rank's optimizer ({far})"
        return ""

    def _optimizer_mean(self, event: Averaged, parts: Mapping[int, Snapshot | Averaged]) -> str:
        """Return how far averaged optimizer state is from the weighted mean. A rank without such state contributes
        zeros."""
        total = sum(self._weight(part) for part in parts.values())
        own = [(self._weight(part) / total, dict(_kept(part))) for part in parts.values()]
        gone = {name for name, _ in event.optimizer_before} - {name for name, _ in event.optimizer_after}
        if gone and not resets(self._settings):
            return f"the average removed {min(gone)} from the state of the rank's optimizer"
        for name, new in event.optimizer_after:
            terms: list[tuple[float, Sketch]] = [(w, decode(kept[name])) for w, kept in own if name in kept]
            state = self._state(name)
            if not self._by_snapshot and self._settings.get("wire") in NARROW:
                state = replace(state, dtype=self._settings["wire"])
            if terms and (far := apart([state], new, combine(terms), self._roundings)):
                return f"the state of the rank's optimizer is not the weighted mean of all ranks' states ({far})"
        return ""

    def _state(self, name: str) -> SketchGroup:
        coarsest = max((group.dtype for group in self._groups), key=lambda kind: UNITS.get(kind, (0.0,))[0])
        return SketchGroup(f"optimizer.{name}", "optimizer", 1, coarsest, False)


def _due(known: Records, world_size: int, first: int, period: int) -> Iterator[str]:
    """Yield the ranks that averaged parameters in a step in which no average is due, or never did though one was
    due."""
    for rank in range(world_size if world_size > 1 else 0):
        own = [event for event in known.progress if event.rank == rank]
        recorded = [each for event in own for each in event.exchanged]  # earlier versions did not record them
        steps = [each.step for each in recorded if each.model]
        if recorded and not steps and sum(event.steps for event in own) > first:
            yield f"rank {rank} recorded no average of parameters, the first is due in step {first}"
        if early := [step for step in steps if step < first or (step - first) % period]:
            yield f"rank {rank}: parameters were averaged in step {early[0]}, where no average is due"


def _inside_steps(known: Records, world_size: int, parts: int) -> Iterator[str]:
    roundings = 2.0 * parts + FEW
    for step in known.exchanges(world_size):
        weights = [(float(own.samples), own.before) for own in step]
        if not any(weight for weight, _ in weights):
            continue
        wanted = mean(weights)
        where = f"exchange {step[0].step}"
        if step[0].parts:
            yield _parts(known.groups, step, wanted, roundings)
            continue
        for rank, own in enumerate(step):
            far = apart(known.groups, own.after, wanted, roundings)
            yield (
                f"{where}, rank {rank}: the result is not the weighted mean of the ranks' values ({far})" if far else ""
            )


def _parts(groups: Sequence[SketchGroup], step: Sequence[StepSketch], wanted: Combined, roundings: float) -> str:
    """Return how far gradients are off whose parts belong to different ranks; buffers are whole on every rank."""
    owned = np.array([float(group.kind == "parameters") for group in groups])
    for rank, own in enumerate(step):
        terms = [(owned if other is not own else np.ones_like(owned), decode(other.after)) for other in step]
        far = apart(groups, combine(terms), wanted, roundings)
        if far:
            return (
                f"exchange {own.step}, rank {rank}: the parts that ranks own do not add up to the weighted mean ({far})"
            )
    return ""


def _sketch(part: Snapshot | Averaged) -> str:
    return part.sketch if isinstance(part, Snapshot) else part.sketch_before


def _kept(part: Snapshot | Averaged) -> OptimizerSketch:
    return part.optimizer if isinstance(part, Snapshot) else part.optimizer_before


def _average(event: Averaged) -> str:
    """Return the sketch of what the rank received as the average; if it recorded none, of its replica after the
    average."""
    return event.sketch_average or event.sketch_after


def _listed(sketches: OptimizerSketch) -> str:
    return ", ".join(name for name, _ in sketches) or "nothing"
