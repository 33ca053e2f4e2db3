"""The shown data of a run, plain for JSON: `row` for the list of runs, `live` and `about` for the run's page. Pure.

The page draws these data and computes only scales. Numbers are rounded to visible precision; unknown values are None.
Times are in seconds since launch, unless a name says otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from bench.base.mode_styles import mode_style
from bench.dashboard.about import RUNNING, RunCard
from bench.dashboard.ranks import pace, ranks
from bench.results.analysis import faults
from bench.results.live.curves import Json, curves, short
from bench.results.live.history import RunHistory
from bench.results.live.run import RunFigures, Trouble
from bench.results.runfolder import flat
from ddp.core.figures.summary import EpochFigures
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Failed, Lost, Resumed
from ddp.core.messages.join_events import Joined


def row(about: RunCard, history: RunHistory) -> Json:
    """Return a row of the list of runs: from the result if there is one, else from the records."""
    model, mode, run_id = about.name
    known: Json = {"key": about.key, "model": model, "mode": mode, "run_id": run_id, "status": about.status}
    known["color"] = mode_style(str(mode))[0]
    known["world_size"] = _size(about, history.run) or None
    known["cell"] = str(metrics.config_hash if (metrics := about.metrics) else about.setting("config_hash"))[:32]
    known["problem"] = about.problems[0] if about.problems else None
    run = history.run
    paced = pace(history, _size(about, run), metrics)
    known |= {"samples_per_s": paced.rate, "over": paced.over}
    if metrics is not None:
        last = metrics.epochs[-1] if metrics.epochs else None
        return known | {
            "progress": 1.0 if metrics.status == "ok" else _part(run.trained, about.epochs * run.epoch_samples),
            "epoch": len([epoch for epoch in metrics.epochs if metrics.status == "ok" or epoch.eval is not None]),
            "epochs": metrics.epochs_planned,
            "seconds": short(metrics.time_s.total),
            "left_s": None,
            "loss": short(metrics.final.train_loss),
            "eval": short(metrics.final.eval),
            "metric": metrics.final.eval_metric,
            "lr": short(last.lr if last else None),
            "lost": len(faults.missing(metrics.faults)),
        }
    seconds = run.since(run.now) - (run.since(run.resumed.at) if run.resumed else 0.0)  # as the result has it
    current, epochs = run.epochs.current(), history.epochs
    last_epoch = epochs[-1] if epochs else None
    return known | {
        "progress": _part(run.trained, about.epochs * run.epoch_samples),
        "epoch": run.complete + sum(epoch.evaluated for epoch in current),
        "epochs": about.epochs or None,
        "seconds": short(seconds),
        "left_s": short(run.time_left(about.epochs)) if about.status == RUNNING else None,
        "loss": short(last_epoch.loss) if last_epoch else None,
        "eval": next((short(epoch.eval) for epoch in reversed(epochs) if epoch.eval is not None), None),
        "metric": (about.graph or {}).get("metric"),
        "lr": short(last_epoch.lr) if last_epoch else None,
        "lost": len(run.lost),
    }


def about(about: RunCard) -> Json:
    """Return the data that do not change during a run (configuration and graph), and the result once there is one."""
    return {"key": about.key, "config": flat(about.config), "graph": about.graph, "result": result(about)}


def result(about: RunCard) -> Json | None:
    """Return the result of a run, or None."""
    m = about.metrics
    if m is None:
        return None
    return {
        "error": m.error,
        "data": m.data,
        "target": m.target.model_dump(),
        "time_s": {name: short(getattr(m.time_s, name)) for name in ("total", "startup", "train", "eval")},
        "efficiency": short(m.throughput.efficiency),
        "breakdown": [{k: short(v) for k, v in shares.model_dump().items()} for shares in m.breakdown],
        "peak_rss_bytes": m.memory.peak_rss_bytes,
        "warnings": m.warnings,
        "git": m.git,
    }


def live(about: RunCard, history: RunHistory) -> Json:
    """Return the data that change during a run: ranks, curves, epochs, the controller, faults."""
    run = history.run
    size = _size(about, run)
    first = run.ready[0] if run.ready else None
    return {
        "key": about.key,
        "world_size": size,
        "over": pace(history, size, about.metrics).over,
        "parameters": first and first.parameters,
        "transport": first and first.transport,
        "samples": run.samples if run.counted else None,
        "ranks": ranks(history, size, about.metrics),
        "curves": curves(history),
        "epochs": [epoch(figures, run) for figures in history.epochs],
        "controller": controller(history),
        "faults": troubles(about, history, size),
        "notes": notes(about, history),
    }


def _size(about: RunCard, run: RunFigures) -> int:
    return about.world_size or len(run.ranks)


def notes(about: RunCard, history: RunHistory) -> list[str]:
    """Return the warnings known at the start of a run."""
    lines, run = list(about.problems), history.run
    if run.resumed is not None:
        lines.append(f"went on from {run.resumed.source} at {run.resumed.samples:,} samples")
    lines += [event.note for event in run.ready if event.note]
    if about.metrics is not None:
        lines += about.metrics.warnings
    elif history.warnings:
        lines += history.warnings
    elif speeds := about.setting("cluster", "speeds"):
        lines.append(f"emulated devices: ranks are slowed down to {json.dumps(speeds)} of their speed")
    if run.aborted is not None:
        lines.append(f"the run was given up: {run.aborted.reason}")
    return list(dict.fromkeys(lines))


def epoch(figures: EpochFigures, run: RunFigures) -> Json:
    """Return an epoch, from 0; `eval` once all of its evaluation is in; `seconds` when its training ended; `scalars`: what
    steps recorded, among it the training metric."""
    return {
        "epoch": figures.epoch,
        "samples": figures.seen if run.counted else None,
        "seconds": short(run.since(figures.at)),
        **{name: short(getattr(figures, name)) for name in ("loss", "eval", "eval_loss", "lr")},
        "scalars": {name: short(value) for name, value in figures.scalars.items()},
    }


def controller(history: RunHistory) -> Json:
    """Return anchor and counts over time, the divergence of replicas, and the guard's verdicts on it."""
    run = history.run
    plan = run.plan
    lost = {number: run.since(rank.lost) for number, rank in run.ranks.items() if rank.lost is not None}
    return {
        **{name: getattr(plan, name, None) for name in ("in_step", "anchor", "phase", "reason")},
        "counts": list(plan.counts) if plan else [],
        "rounds": history.rounds,
        "plans": [
            {"seconds": short(at), "anchor": p.anchor, "counts": _counts(at, p.counts, lost), "reason": p.reason}
            for at, p in history.plans
        ],
        "closed": [
            {"seconds": short(at), "round": number, "divergence": short(divergence), "ms": short(ms)}
            for at, number, divergence, ms in history.closed
        ],
        "verdicts": [
            {
                "seconds": short(seconds),
                **{name: getattr(verdict, name) for name in ("round", "guard", "verdict")},
                **{name: short(getattr(verdict, name)) for name in ("divergence", "value", "limit", "factor")},
            }
            for seconds, verdict in history.verdicts
        ],
    }


def _counts(seconds: float, counts: tuple[int, ...], lost: Mapping[int, float]) -> list[int | None]:
    """Return the counts of a plan without those of ranks that were lost by then."""
    return [None if seconds >= lost.get(rank, math.inf) else count for rank, count in enumerate(counts)]


def troubles(about: RunCard, history: RunHistory, size: int) -> list[Json]:
    """Return the faults of a run, one entry each; from the result once there is one."""
    if about.metrics is not None:
        rows = about.metrics.faults
    else:
        rows = faults.rows(_possible(history.trouble, size), history.run.first or 0.0, size)
    return [fault.model_dump() | {"seconds": short(fault.seconds)} for fault in rows]


def _possible(trouble: list[tuple[float, Trouble]], size: int) -> list[tuple[float, Trouble]]:
    """Leave out what no run has: a rank is dropped once (until a resume), only one that there is, and never the last."""
    known: set[int] = set()
    possible: list[tuple[float, Trouble]] = []
    for at, record in trouble:
        if isinstance(record, Drop):
            if record.rank in known or record.rank >= size or len(known) + 1 == size:
                continue
            known.add(record.rank)
        if isinstance(record, Resumed):
            known.clear()
        if isinstance(record, Joined):
            if record.rank not in known:
                continue
            known.remove(record.rank)
        if not isinstance(record, Failed | Lost) or record.rank < size:
            possible.append((at, record))
    return possible


def _part(done: float, total: float) -> float | None:
    return short(min(max(done / total, 0.0), 1.0)) if total else None
