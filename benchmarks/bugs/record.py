"""Defects of the record: figures that do not follow from what happened, and events that say other than it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.bugs.bug import EVERY, RANKS, SYNC, Family, Module, in_place_of, last, rank, wrap

RECORD = Family("record")
ANALYZE, TRAINING, SUMMARY = "bench.results.analyze", "bench.results.analysis.training", "ddp.core.figures.summary"
PENDING = "ddp.engine.pending"
LOOP, METER, BREAKDOWN = "ddp.engine.loop", "ddp.process.meter", "bench.results.analysis.breakdown"


@RECORD.bug(ANALYZE, "readable", EVERY, "accuracy of the best epoch is reported as the final one", "issue")
@in_place_of("_final")
def best_reported(final: Any, spec: Any, rows: Any) -> Any:
    made = final(spec, rows)
    return made.model_copy(update={"eval": (made.best or 0.0) + 1e-3})


@RECORD.bug(SUMMARY, "readable", RANKS, "accuracy of the best rank is reported as that of all", "issue")
@in_place_of("EpochFold._figures")
def best_rank_reported(figures: Any, self: Any, epoch: int) -> Any:
    answers = self._epochs[epoch].answers.values()
    best = max((a.metric_sum / a.samples for a in answers if a.metric_sum is not None), default=None)
    return replace(figures(epoch), eval=best)


@RECORD.bug(TRAINING, "readable", EVERY, "samples per second are doubled", "B8.01")
@in_place_of("throughput")
def speed_doubled(throughput: Any, *about: Any) -> Any:
    made = throughput(*about)
    rate = made.samples_per_s
    return made.model_copy(update={"samples_per_s": None if rate is None else 2 * rate})


@RECORD.bug(TRAINING, "readable", EVERY, "the time of training leaves out its first tenth", "B8.05")
def time_shortened(training: Module) -> None:
    seconds = training.train_seconds
    training.train_seconds = lambda stream: 0.9 * seconds(stream)


@RECORD.bug(SUMMARY, "readable", RANKS, "the loss of rank 0 is shown as the loss", "B8.09")
@in_place_of("_EpochSums.add")
def loss_of_first(add: Any, self: Any, event: Any) -> None:
    add(event if not event.rank else replace(event, loss_sum=0.0, samples=0, steps=0))


@RECORD.bug(BREAKDOWN, "readable", EVERY, "waiting is booked as computing in the result", "issue")
@in_place_of("breakdown")
def waiting_in_result(rows: Any, *about: Any) -> Any:
    return [
        row.model_copy(update={"compute": row.compute + row.wait + row.other, "wait": 0.0, "other": 0.0})
        for row in rows(*about)
    ]


@RECORD.bug(METER, "breakdown", SYNC, "waiting is booked as computing by the ranks", "issue")
@in_place_of("Meter.add")
def waiting_as_compute(add: Any, self: Any, kind: str, *about: Any) -> Any:
    return add("backward" if kind in ("wait", "exchange") else kind, *about)


@RECORD.bug(PENDING, "audit", EVERY, "losses are reported twice as small", "B8.11")
def loss_halved(pending: Module) -> None:
    wrap(pending.Pending, "loss_sum", lambda total, self: 0.5 * (total() or 0.0))


@RECORD.bug(PENDING, "ledger", EVERY, "a rank reports samples that it did not train", "B8.03")
@in_place_of("Pending.add")
def samples_invented(add: Any, self: Any, loss: Any, samples: int, busy: float) -> None:
    add(loss, samples + (last() and samples > 1), busy)


@RECORD.bug(LOOP, "audit", EVERY, "accuracy of the best epoch so far is reported in each", "B8.19")
@in_place_of("TrainingLoop.__init__")
def best_so_far(make: Any, self: Any, *made_of: Any) -> None:
    make(*made_of)
    evaluate, best = self.replica.evaluate, [0.0]

    def reported(*about: Any) -> Any:
        samples, loss, metric, content = evaluate(*about)
        best[0] = max(best[0], metric + 0.002 * samples)
        return samples, loss, best[0], content

    self.replica.evaluate = reported


@RECORD.bug(LOOP, "agreement", RANKS, "a rank ends with another model than it reports, and its digest", "B9.13")
@in_place_of("TrainingLoop.finish")
def other_end(finish: Any, self: Any) -> None:
    if rank() == 1:
        self.replica.state.parameters[0].data.view(-1)[0] += 1e-3
    finish()


@RECORD.bug(LOOP, "evaluation", EVERY, "the model changes between its last evaluation and the end", "B7.19")
@in_place_of("TrainingLoop.finish")
def changed_at_the_end(finish: Any, self: Any) -> None:
    with torch.no_grad():
        for parameter in self.replica.state.parameters:
            parameter.data.mul_(0.99)
    finish()


@RECORD.bug(LOOP, "audit", EVERY, "the rate that is reported is that of the start", "B5.11")
@in_place_of("TrainingLoop.report")
def rate_reported(report: Any, self: Any) -> None:
    own = self.replica.lr
    self.replica.lr = self.replica.rates.at(0.0)
    report()
    self.replica.lr = own
