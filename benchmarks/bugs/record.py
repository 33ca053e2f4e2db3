"""Defects of the record: figures that do not follow from what happened, and events that say other than it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bugs.bug import EVERY, RANKS, SYNC, Family, Module, last, rank, wrap

RECORD = Family("record")
ANALYZE, TRAINING, SUMMARY = "bench.results.analyze", "bench.results.analysis.training", "ddp.core.summary"
PENDING = "ddp.engine.pending"
LOOP, METER, BREAKDOWN = "ddp.engine.loop", "ddp.process.meter", "bench.results.analysis.breakdown"


@RECORD.bug(ANALYZE, "readable", EVERY, "accuracy of the best epoch is reported as the final one", "issue")
def best_reported(analyze: Module) -> None:
    final = analyze._final

    def broken(spec: Any, rows: Any) -> Any:
        made = final(spec, rows)
        return made.model_copy(update={"eval": (made.best or 0.0) + 1e-3})

    analyze._final = broken


@RECORD.bug(SUMMARY, "readable", RANKS, "accuracy of the best rank is reported as that of all", "issue")
def best_rank_reported(summary: Module) -> None:
    def broken(figures: Any, self: Any, epoch: int) -> Any:
        answers = self._epochs[epoch].answers.values()
        best = max((a.metric_sum / a.samples for a in answers if a.metric_sum is not None), default=None)
        return replace(figures(epoch), eval=best)

    wrap(summary.EpochFold, "_figures", broken)


@RECORD.bug(TRAINING, "readable", EVERY, "samples per second are doubled", "B8.01")
def speed_doubled(training: Module) -> None:
    throughput = training.throughput

    def broken(*about: Any) -> Any:
        made = throughput(*about)
        rate = made.samples_per_s
        return made.model_copy(update={"samples_per_s": None if rate is None else 2 * rate})

    training.throughput = broken


@RECORD.bug(TRAINING, "readable", EVERY, "the time of training leaves out its first tenth", "B8.05")
def time_shortened(training: Module) -> None:
    seconds = training.train_seconds
    training.train_seconds = lambda stream: 0.9 * seconds(stream)


@RECORD.bug(SUMMARY, "readable", RANKS, "the loss of rank 0 is shown as the loss", "B8.09")
def loss_of_first(summary: Module) -> None:
    def broken(add: Any, self: Any, event: Any) -> None:
        add(event if not event.rank else replace(event, loss_sum=0.0, samples=0, steps=0))

    wrap(summary._EpochSums, "add", broken)


@RECORD.bug(BREAKDOWN, "readable", EVERY, "waiting is booked as computing in the result", "issue")
def waiting_in_result(breakdown: Module) -> None:
    rows = breakdown.breakdown

    def broken(*about: Any) -> Any:
        return [
            row.model_copy(update={"compute": row.compute + row.wait + row.other, "wait": 0.0, "other": 0.0})
            for row in rows(*about)
        ]

    breakdown.breakdown = broken


@RECORD.bug(METER, "breakdown", SYNC, "waiting is booked as computing by the ranks", "issue")
def waiting_as_compute(meter: Module) -> None:
    def broken(add: Any, self: Any, kind: str, *about: Any) -> Any:
        return add("backward" if kind in ("wait", "exchange") else kind, *about)

    wrap(meter.Meter, "add", broken)


@RECORD.bug(PENDING, "audit", EVERY, "losses are reported twice as small", "B8.11")
def loss_halved(pending: Module) -> None:
    wrap(pending.Pending, "loss_sum", lambda total, self: 0.5 * (total() or 0.0))


@RECORD.bug(PENDING, "ledger", EVERY, "a rank reports samples that it did not train", "B8.03")
def samples_invented(pending: Module) -> None:
    def broken(add: Any, self: Any, loss: Any, samples: int, busy: float) -> None:
        add(loss, samples + (last() and samples > 1), busy)

    wrap(pending.Pending, "add", broken)


@RECORD.bug(LOOP, "audit", EVERY, "accuracy of the best epoch so far is reported in each", "B8.19")
def best_so_far(loop: Module) -> None:
    def broken(make: Any, self: Any, *made_of: Any) -> None:
        make(*made_of)
        evaluate, best = self.replica.evaluate, [0.0]

        def reported(*about: Any) -> Any:
            samples, loss, metric, content = evaluate(*about)
            best[0] = max(best[0], metric + 0.002 * samples)
            return samples, loss, best[0], content

        self.replica.evaluate = reported

    wrap(loop.TrainingLoop, "__init__", broken)


@RECORD.bug(LOOP, "agreement", RANKS, "a rank ends with another model than it reports, and its digest", "B9.13")
def other_end(loop: Module) -> None:
    def broken(finish: Any, self: Any) -> None:
        if rank() == 1:
            self.replica.state.parameters[0].data.view(-1)[0] += 1e-3
        finish()

    wrap(loop.TrainingLoop, "finish", broken)


@RECORD.bug(LOOP, "evaluation", EVERY, "the model changes between its last evaluation and the end", "B7.19")
def changed_at_the_end(loop: Module) -> None:
    def broken(finish: Any, self: Any) -> None:
        with loop.torch.no_grad():
            for parameter in self.replica.state.parameters:
                parameter.data.mul_(0.99)
        finish()

    wrap(loop.TrainingLoop, "finish", broken)


@RECORD.bug(LOOP, "audit", EVERY, "the rate that is reported is that of the start", "B5.11")
def rate_reported(loop: Module) -> None:
    def broken(report: Any, self: Any) -> None:
        own = self.replica.lr
        self.replica.lr = self.replica.rates.at(0.0)
        report()
        self.replica.lr = own

    wrap(loop.TrainingLoop, "report", broken)
