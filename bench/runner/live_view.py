"""The lines that show a run while it lasts: one for the run, one for an epoch, one for a rank. Pure.

`bench.results.live` computes the figures; this module formats them. Knows neither terminals nor folders.
"""

from __future__ import annotations

import math

from bench.base import number_format
from bench.config.spec import RunSpec
from bench.results.live.run import RunFigures
from ddp.core.figures.summary import EpochFigures
from ddp.core.messages.commands import Drop, Plan
from ddp.core.messages.events import GuardVerdict, RoundClosed
from ddp.process.codec import Record

RANKS = 16
"""Most ranks that have a line of their own."""


def announced_line(spec: RunSpec) -> str:
    """Return the line on the run about to start."""
    epochs = number_format.plural(spec.epochs, "epoch")
    return (
        f"{spec.model} {spec.mode}: recipe {spec.recipe} on {spec.data}, {epochs} of batches of "
        f"{spec.batch_size}, seed {spec.seed}  [{spec.run_id}]"
    )


def ready_line(spec: RunSpec, run: RunFigures) -> str:
    """Return the line printed when all ranks are ready that are there at the start."""
    first = run.ready[0]
    devices = "/".join(sorted({event.device for event in run.ready}))
    some = f"{len(run.ready)} of " if len(run.ready) < spec.world_size else ""
    ranks = f"{some}{spec.world_size} rank{'s' * (spec.world_size > 1)}"
    through = "" if first.transport == "none" else f", averaging through {first.transport}"
    return f"{ranks} on {devices}{through}; {first.parameters:,} parameters, {first.samples:,} samples per epoch"


def lost_line(spec: RunSpec, run: RunFigures, drop: Drop) -> str:
    """Return the line on a lost rank: since when the run continues without it, and why."""
    left = [str(rank) for rank in range(spec.world_size) if rank not in run.lost]
    others = f"rank{'s' * (len(left) > 1)} {', '.join(left)}"
    since = f"{run.since(run.ranks[drop.rank].lost or 0.0):.1f} s after launch"
    return f"rank {drop.rank} is lost {since}: {drop.reason}; going on with {others}"


def epoch_line(spec: RunSpec, run: RunFigures, epoch: EpochFigures, last: EpochFigures | None) -> str:
    """Return the line on an evaluated epoch, with the training metric if steps recorded it. Its speed is that of all
    ranks since the `last` epoch ended, whichever epoch they were in; there is none if they had trained all before."""
    seen, began = (0, 0.0) if last is None else (last.seen, last.seconds)
    samples, seconds = epoch.seen - seen, epoch.seconds - began
    rate = _rate(samples / seconds if samples and seconds > 0 else None)
    known = epoch.scalars.get(spec.metric)
    training = "" if known is None or known == epoch.loss else f" (training {_metric(known)})"
    return f"{_epoch(spec, epoch)}{training}  {rate}  {schedule(spec, run)}".rstrip()


def run_line(spec: RunSpec, run: RunFigures, last: EpochFigures | None, now: float) -> str:
    """Return the line on the current state of a run: the `last` epoch, samples per second, the time left at `now`."""
    name = f"{spec.model} {spec.mode} seed {spec.seed}"
    if run.began is None:
        return f"{name}  starting, {duration(run.since(now))}"
    done = f"epoch 0/{spec.epochs}" if last is None else _epoch(spec, last)
    left = run.time_left(spec.epochs)
    return f"{name}  {done}  {_rate(run.rate)}" + ("" if left is None else f"  {duration(left)} left")


def rank_lines(spec: RunSpec, run: RunFigures) -> list[str]:
    """Return a line for each of the first `RANKS` ranks: samples trained, speed and memory."""
    lines = []
    for number, rank in sorted(run.ranks.items())[:RANKS]:
        if rank.lost is not None:
            lines.append(f"  rank {number}  lost {run.since(rank.lost):.1f} s after launch")
            continue
        seconds = run.now - run.began if run.began is not None else 0.0
        rate = _rate((rank.samples - rank.earlier) / seconds if seconds > 0 else None)
        memory = f"  {rank.rss_bytes / 2**20:,.0f} MiB" if rank.rss_bytes else ""
        busy = f"  at work {min(rank.busy_s / seconds, 1.0):.0%}" if seconds > 0 else ""
        lines.append(f"  rank {number}  epoch {rank.epoch + 1}  {rank.samples:,} samples  {rate}{busy}{memory}")
    if spec.world_size > RANKS:
        lines.append(f"  and {spec.world_size - RANKS} more ranks")
    return lines


def record_line(record: Record, run: RunFigures, every: bool) -> str | None:
    """Return an average, a plan or a guard's verdict as a line; with `every`, any record but a rank's own measurements."""
    seconds = f"{run.since(run.heard):8.2f} s"
    match record:
        case RoundClosed():
            apart = max(record.divergence, default=0.0)
            steps, ms = "/".join(map(str, record.steps)), record.sync_s * 1e3
            return f"{seconds}  round {record.round}: steps {steps}, divergence {apart:.2g}, {ms:.1f} ms"
        case Plan() if not record.in_step:
            return f"{seconds}  anchor {record.anchor}, steps {'/'.join(map(str, record.counts))}: {record.reason}"
        case GuardVerdict():
            return f"{seconds}  guard {record.guard}: {record.verdict}"
    return f"{seconds}  {record!r}" if every else None


def duration(seconds: float) -> str:
    """Write seconds as `0:07`, `12:30` or `3:04:59`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def schedule(spec: RunSpec, run: RunFigures) -> str:
    """Return anchor and step counts as text, if windows are longer than one step."""
    if run.plan is None or run.plan.in_step or spec.world_size == 1:
        return ""
    return f"anchor {run.plan.anchor}, steps {'/'.join(map(str, run.plan.counts))}"


def _epoch(spec: RunSpec, epoch: EpochFigures) -> str:
    number = f"{epoch.epoch + 1:>{len(str(spec.epochs))}}/{spec.epochs}"
    untested = epoch.evaluated and not epoch.eval_samples  # a script's run without eval_step
    metric = "" if untested else f"  {spec.metric} {_metric(epoch.eval)}"
    return f"epoch {number}  loss {_metric(epoch.loss)}{metric}"


def _rate(samples_per_s: float | None) -> str:
    return f"{'-' if samples_per_s is None else number_format.rate(samples_per_s)} samples/s"


def _metric(value: float | None) -> str:
    return number_format.metric(math.nan if value is None else value)  # for the eye, which knows this word
