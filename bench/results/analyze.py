"""`analyze`: from the records of a run to its result. Pure: no clock, no files. `bench.results.analysis` has the
parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.config.spec import RunSpec
from bench.results.analysis import faults
from bench.results.analysis.breakdown import breakdown, seconds_in, walls
from bench.results.analysis.goodput import goodput
from bench.results.analysis.ledger import ledger
from bench.results.analysis.slow import slow_ranks
from bench.results.analysis.stream import RunRecords, SplitRecords, ranks_before, sort
from bench.results.analysis.syncing import elche, sync
from bench.results.analysis.timeline import timeline
from bench.results.analysis.training import UNTIMED, Finite, epoch_row, target, throughput, train_seconds
from bench.results.analysis.work import memory, work
from bench.results.schema import SCHEMA_VERSION, Epoch, Final, LauncherInfo, Metrics, ResumedFrom, Time
from ddp.core.messages.commands import Publish
from ddp.core.messages.events import Ready, Saved
from ddp.core.messages.join_events import Joined
from ddp.core.messages.run_bounds import Attempt
from ddp.process.codec import Record


def analyze(
    spec: RunSpec,
    records: Sequence[Record] | SplitRecords | RunRecords,
    *,
    status: str,
    launched: float,
    ended: float,
    env: dict[str, Any],
    git: dict[str, Any],
    warnings: Sequence[str] = (),
    error: str | None = None,
    restarts: int = 0,
    attempts: Sequence[Attempt] = (),
) -> Metrics:
    """Return the result of a run of `spec`, from its records in order of time.

    `launched` and `ended` are seconds on the clock of the records. A run that ended `ok` with a loss that is not finite
    becomes `diverged`. Raises AssertionError if the slices of a rank overlap grossly.
    """
    stream, finite = sort(records, launched), Finite()
    most = max(spec.world_size, *ranks_before(stream), 0)
    rows = [epoch_row(figures, most, finite) for figures in stream.epochs]
    if spec.source == "predicted":  # losses of virtual ranks mean nothing
        rows = [row.model_copy(update=dict.fromkeys(("train_loss", "eval", "eval_loss"))) for row in rows]
    elif status == "ok" and rows and rows[-1].train_loss is None:
        status, error = "diverged", error or "the training loss stopped being finite"
    lines = faults.of_run(stream, spec.world_size, attempts)
    without = [rank for rank in range(spec.world_size) if rank not in stream.ready] if status == "ok" else []
    came = {record.rank for _, record in stream.moves if isinstance(record, Joined)}
    late, absent = ([rank for rank in without if (rank in came) is joined] for joined in (True, False))
    late = sorted({*late, *(_joined_before(stream) & stream.ready.keys())})
    notes = [*_never_came(absent), *spec.warnings, *warnings, *faults.notes(lines), *_notes(stream)]
    notes += _restarted(restarts, stream, env)
    outcome = {"status": status, "error": error, "git": git, "env": env, "warnings": list(dict.fromkeys(notes))}
    metrics = Metrics.model_validate(
        _identity(spec, stream)
        | outcome
        | _measured(spec, stream, without, launched, ended, attempts)
        | {
            "restarts": restarts,
            "launcher": _launcher(env, stream),
            "faults": lines,
            "late": late,
            "absent": absent,
            "slow_ranks": slow_ranks(stream.figures.slow, stream.zero),
            "ledger": ledger(stream, most, spec.epochs),
            "epochs": rows,
            "final": _final(spec, rows),
            "target": target(rows, spec.target, spec.higher_is_better, spec.timing),
            "nonfinite": finite.lost,
        }
    )
    more = {"timeline": timeline(stream, metrics, spec.config), "work": work(stream, metrics, spec.config)}
    return metrics.model_copy(update=more)


def _measured(
    spec: RunSpec,
    stream: RunRecords,
    without: Sequence[int],
    launched: float,
    ended: float,
    attempts: Sequence[Attempt],
) -> dict[str, Any]:
    """Return the measured sections: times, speeds, costs. `without`: ranks that joined later, or never."""
    wall, trained = walls(stream, spec.world_size, without), train_seconds(stream)
    ranks = breakdown(stream, wall)
    return {
        "time_s": _time(stream, launched, ended, trained, wall, seconds_in(ranks, wall, "checkpoint")),
        "throughput": throughput(stream, spec.world_size, trained) if spec.timing else UNTIMED,
        "breakdown": ranks,
        "sync": sync(stream),
        "elche": elche(stream),
        "goodput": goodput(stream, spec.world_size, launched, ended, attempts) if spec.timing else None,
        "memory": memory(spec.world_size, stream),
    }


def _identity(spec: RunSpec, stream: RunRecords) -> dict[str, Any]:
    """Return what was run, and how much of it."""
    ready = [stream.ready[rank] for rank in sorted(stream.ready)]
    digests = {event.digest for event in stream.finished.values()}
    return {
        **{name: getattr(spec, name) for name in _SAME_NAME},
        "schema_version": SCHEMA_VERSION,
        "source": spec.source or None,
        "transport": ready[0].transport if ready else None,
        "loader": [event.loader for event in ready if event.loader],
        "devices": [event.device for event in ready],
        "emulated_speeds": list(spec.speeds),
        "scripted_faults": [str(fault) for fault in spec.faults],
        "epochs_planned": spec.epochs,
        "parameters": ready[0].parameters if ready else None,
        "frozen": ready[0].frozen if ready else 0,
        "steps": stream.figures.steps,
        "samples": stream.figures.samples,
        "resumed": _resumed(stream),
        "params_sha256": digests.pop() if len(digests) == 1 and spec.source != "predicted" else None,
    }


_SAME_NAME = (
    *("run_id", "model", "data", "recipe", "mode", "engine", "policy", "backend", "world_size", "seed"),
    *("depth", "batch_size", "lr", "lr_scale", "config_hash", "timing"),
)
"""Fields that the result copies from the `RunSpec`."""


HIDDEN = "collectives lie inside forward, backward and optimizer: compute holds them, and no efficiency is known"


def _notes(stream: RunRecords) -> list[str]:
    notes = []
    if len({event.digest for event in stream.finished.values()}) > 1:
        notes.append("the ranks ended with different parameters")
    for note in dict.fromkeys(event.note for event in stream.ready.values() if event.note):
        ranks = ", ".join(str(rank) for rank, event in sorted(stream.ready.items()) if event.note == note)
        notes.append(f"rank {ranks}: {note}")
    if stream.resumed is not None:
        notes.append(
            f"the run went on from {stream.resumed.source} at {stream.resumed.samples} samples: times, throughput, "
            "breakdown and sync are of the rest alone, goodput is that since the checkpoint"
        )
    if stream.hidden:
        notes.append(HIDDEN)
    unsaved = [event for event in stream.of(Saved) if event.error]
    whole = [
        f"the last one that was is {last.index}, after {last.coordinator.epochs} epochs"
        for last in stream.of(Publish)[-1:]
    ]
    kept = whole[0] if whole else "no other was"
    notes += [f"checkpoint {event.index} could not be written: {event.error}; {kept}" for event in unsaved[:1]]
    return notes


def _joined_before(stream: RunRecords) -> set[int]:
    """Return the ranks that joined an earlier part of a resumed run after its start."""
    parts = stream.parts_in_turn[:-1]
    moves = [(part, record.rank) for part in parts for _, record in part.moves if isinstance(record, Joined)]
    return {rank for part, rank in moves if rank not in part.ready}


def _never_came(absent: Sequence[int]) -> list[str]:
    """Return a note if the run trained without ranks to its end."""
    who = f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
    return [f"{who} never came: while a run lasts, python -m bench join RUN offers a process"] if absent else []


def _restarted(restarts: int, stream: RunRecords, env: dict[str, Any]) -> list[str]:
    """Return a note if the launcher restarted the processes."""
    if not restarts:
        return []
    who = "torchrun" if env.get("launcher") is None else env["launcher"]["name"]
    anew = "" if stream.resumed is not None else ", and the run began anew: no checkpoint of before was found"
    return [f"{who} started its processes again {'once' if restarts == 1 else f'{restarts} times'}{anew}"]


def _launcher(env: dict[str, Any], stream: RunRecords) -> LauncherInfo | None:
    """Return who started the ranks, and the host of each rank that became ready."""
    origin = env.get("launcher")
    if origin is None:
        return None
    ready = sorted(stream.of(Ready), key=lambda event: event.rank)
    last = {event.rank: event for event in ready}.values()
    names = origin["hosts"]
    hosts = [_host(event, names) for event in last]
    errors = [event.clock_error_s for event in last]
    return LauncherInfo(name=origin["name"], job=origin["job"], hosts=hosts, clock_error_s=errors)


def _host(event: Ready, names: list[str]) -> str:
    """Return the name of a rank's host: by the launcher, else its own, else its number."""
    return names[event.host] if event.host < len(names) else event.hostname or f"host {event.host}"


def _resumed(stream: RunRecords) -> ResumedFrom | None:
    if stream.resumed is None or stream.earlier is None:
        return None
    return ResumedFrom(
        source=stream.resumed.source,
        checkpoint=stream.resumed.index,
        epochs=stream.resumed.epochs,
        samples=stream.resumed.samples,
        seconds=stream.figures.epochs.before,
        times=len(stream.parts_in_turn) - 1,
        ranks=ranks_before(stream),
    )


def _final(spec: RunSpec, rows: list[Epoch]) -> Final:
    evaluated = [(row.eval, row.epoch) for row in rows if row.eval is not None]
    sign = 1 if spec.higher_is_better else -1
    best, epoch = max(evaluated, key=lambda row: (sign * row[0], -row[1]), default=(None, None))
    return Final(
        train_loss=rows[-1].train_loss if rows else None,
        eval=evaluated[-1][0] if evaluated else None,
        best=best,
        best_epoch=epoch,
        eval_metric=spec.metric,
        higher_is_better=spec.higher_is_better,
    )


def _time(
    stream: RunRecords, launched: float, ended: float, trained: float, wall: list[float], checkpoint: float
) -> Time:
    startup = (ended if stream.begun is None else stream.begun) - launched
    evaluating = 0.0 if stream.clock is None else stream.clock.evaluated(ended)
    return Time(
        total=ended - launched,
        startup=startup,
        train=trained,
        eval=evaluating,
        checkpoint=checkpoint,
        rank_wall=wall,
        shutdown=max(ended - launched - startup - trained - evaluating, 0.0),
    )
