"""What is shown of a run, as plain data for JSON: `row` for the list of runs, `live` and `about` for its page. Pure.

The page draws what it is given and computes nothing but scales. Numbers are rounded to what an eye can see; what is not
known is None. Times are in seconds since launch, unless a name says otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from bench.dashboard.about import RUNNING, RunCard
from bench.dashboard.lines import Json, curves, pace, ranks, ratio, short
from bench.dashboard.state import DashboardState, PlanInForce, Score
from bench.results.analysis import faults
from bench.results.analysis.stream import RunRecords, Slices, Trouble
from ddp.core.commands import Drop
from ddp.core.events import Failed, Lost


def row(about: RunCard, state: DashboardState) -> Json:
    """A line in the list of runs: of one with a result what that says, else what its records do."""
    model, mode, run_id = about.name
    known: Json = {"key": about.key, "model": model, "mode": mode, "run_id": run_id, "status": about.status}
    known["problem"] = about.problems[0] if about.problems else None
    metrics = about.metrics
    paced = pace(state, _size(about, state), metrics)
    known |= {"samples_per_s": paced.rate, "over": paced.over}
    if metrics is not None:
        last = metrics.epochs[-1] if metrics.epochs else None
        return known | {
            "progress": 1.0 if metrics.status == "ok" else _part(len(metrics.epochs), metrics.epochs_planned),
            "epoch": len(metrics.epochs),
            "epochs": metrics.epochs_planned,
            "seconds": short(metrics.time_s.total),
            "left_s": None,
            "loss": short(metrics.final.train_loss),
            "eval": short(metrics.final.eval),
            "metric": metrics.final.eval_metric,
            "lr": short(last.lr if last else None),
            "lost": sum(fault.rank is not None for fault in metrics.faults),
        }
    seconds = state.since(state.now) - (state.since(state.resumed.at) if state.resumed else 0.0)  # as the result has it
    done = [score for _, score in sorted(state.epochs.items()) if score.samples]
    evaluated = [score for score in done if _eval(score) is not None]
    return known | {
        "progress": _part(state.samples, _total(about, state)),
        "epoch": state.epochs_gone + sum(score.whole for score in done),
        "epochs": about.epochs or None,
        "seconds": short(seconds),
        "left_s": left_s(about, state) if about.status == RUNNING else None,
        "loss": short(ratio(done[-1].loss, done[-1].samples)) if done else None,
        "eval": short(_eval(evaluated[-1])) if evaluated else None,
        "metric": (about.graph or {}).get("metric"),
        "lr": short(done[-1].lr) if done else None,
        "lost": sum(rank.lost is not None for rank in state.ranks.values()),
    }


def left_s(about: RunCard, state: DashboardState) -> float | None:
    """Seconds that the rest of the samples will take, at the speed so far."""
    total, rate = _total(about, state), _rate(state)
    return short(max(total - state.samples, 0) / rate) if total and rate else None


def _total(about: RunCard, state: DashboardState) -> int:
    """Samples of the whole run; 0: not known."""
    return about.epochs * next((rank.ready.samples for rank in state.ranks.values() if rank.ready), 0)


def _rate(state: DashboardState) -> float | None:
    """Samples per second so far, evaluation included."""
    seconds = state.now - state.began if state.began is not None else 0.0
    return (state.samples - state.before) / seconds if seconds > 0 and state.samples > state.before else None


def about(about: RunCard) -> Json:
    """What does not change while a run lasts: configuration and graph; and its result, once there is one."""
    return {"key": about.key, "config": flat(about.config), "graph": about.graph, "result": result(about)}


def flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Dotted keys and values as text, in the order of the file."""
    if not isinstance(config, dict) or not config:
        return [(prefix, _text(config))] if prefix else []
    return [pair for key, value in config.items() for pair in flat(value, f"{prefix}.{key}" if prefix else str(key))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def result(about: RunCard) -> Json | None:
    """What came out."""
    m = about.metrics
    if m is None:
        return None
    return {
        "error": m.error,
        "data": m.data,
        "target": m.target.model_dump() if m.target else None,
        "time_s": {name: short(getattr(m.time_s, name)) for name in ("total", "startup", "train", "eval")},
        "efficiency": short(m.throughput.efficiency),
        "breakdown": [{k: short(v) for k, v in shares.model_dump().items()} for shares in m.breakdown],
        "peak_rss_bytes": m.memory.peak_rss_bytes,
        "warnings": m.warnings,
        "git": m.git.model_dump() if hasattr(m.git, "model_dump") else m.git,
    }


def live(about: RunCard, state: DashboardState) -> Json:
    """What changes while a run lasts: ranks, curves, epochs, the controller, faults."""
    size = _size(about, state)
    return {
        "key": about.key,
        "world_size": size,
        "over": pace(state, size, about.metrics).over,
        "parameters": next((rank.ready.parameters for rank in state.ranks.values() if rank.ready), None),
        "transport": next((rank.ready.transport for rank in state.ranks.values() if rank.ready), None),
        "samples": state.samples,
        "ranks": ranks(state, size, about.metrics),
        "curves": curves(state),
        "epochs": [epoch(number, score) for number, score in sorted(state.epochs.items()) if score.samples],
        "controller": controller(state),
        "faults": troubles(about, state, size),
        "notes": notes(about, state),
    }


def _size(about: RunCard, state: DashboardState) -> int:
    return about.world_size or len(state.ranks)


def notes(about: RunCard, state: DashboardState) -> list[str]:
    """What a reader must know."""
    said = list(about.problems)
    if state.resumed is not None:
        said.append(f"went on from {state.resumed.source} at {state.resumed.samples:,} samples")
    said += [rank.ready.note for rank in state.ranks.values() if rank.ready and rank.ready.note]
    if about.metrics is not None:
        said += about.metrics.warnings
    elif speeds := about.asked("cluster", "speeds"):
        said.append(f"emulated devices: ranks are slowed down to {_text(speeds)} of their speed")
    if state.aborted is not None:
        said.append(f"the run was given up: {state.aborted.reason}")
    return list(dict.fromkeys(said))


def epoch(number: int, score: Score) -> Json:
    """An epoch, from 0; `eval` once all of its evaluation is in."""
    return {
        "epoch": number,
        "samples": score.seen,
        "seconds": short(score.seconds),
        "loss": short(ratio(score.loss, score.samples)),
        "eval": short(_eval(score)),
        "eval_loss": short(ratio(score.eval_loss, score.eval_samples)) if score.whole else None,
        "lr": short(score.lr),
    }


def _eval(score: Score) -> float | None:
    return ratio(score.metric, score.eval_samples) if score.whole else None


def controller(state: DashboardState) -> Json:
    """Anchor and counts over time, how far replicas came apart, and what the guard said of it."""
    plan = state.plan
    lost = {number: state.since(rank.lost) for number, rank in state.ranks.items() if rank.lost is not None}
    return {
        "in_step": plan.in_step if plan else None,
        "anchor": plan.anchor if plan else None,
        "counts": list(plan.counts) if plan else [],
        "phase": plan.phase if plan else None,
        "reason": plan.reason if plan else None,
        "rounds": state.rounds,
        "plans": [
            {"seconds": short(p.seconds), "anchor": p.anchor, "counts": _counts(p, lost), "reason": p.reason}
            for p in state.plans
        ],
        "closed": [
            {
                "seconds": short(c.seconds),
                "round": c.round,
                "divergence": short(c.divergence),
                "ms": short(c.sync_ms),
            }
            for c in state.closed
        ],
        "verdicts": [
            {
                "seconds": short(seconds),
                "round": said.round,
                "guard": said.guard,
                "verdict": said.verdict,
                "divergence": short(said.divergence),
                "value": short(said.value),
                "limit": short(said.limit),
                "factor": short(said.factor),
            }
            for seconds, said in state.verdicts
        ],
    }


def _counts(planned: PlanInForce, lost: Mapping[int, float]) -> list[int | None]:
    """Without those of ranks that were lost by then."""
    return [None if planned.seconds >= lost.get(rank, math.inf) else count for rank, count in enumerate(planned.counts)]


def troubles(about: RunCard, state: DashboardState, size: int) -> list[Json]:
    """What went wrong, a line each; as the result has it, once there is one."""
    if about.metrics is not None:
        return [fault.model_dump() | {"seconds": short(fault.seconds)} for fault in about.metrics.faults]
    if state.first is None:
        return []
    known: set[int] = set()
    trouble: list[tuple[float, Trouble]] = []
    for at, record in state.trouble:  # a rank is dropped once, only one that there is, and never the last
        if isinstance(record, Drop):
            if record.rank in known or record.rank >= size or len(known) + 1 == size:
                continue
            known.add(record.rank)
        if not isinstance(record, Failed | Lost) or record.rank < size:
            trouble.append((at, record))
    rows = faults.faults(RunRecords(Slices.of(()), trouble=trouble), state.first, size)
    return [fault.model_dump() | {"seconds": short(fault.seconds)} for fault in rows]


def _part(done: float, total: float) -> float | None:
    return short(min(max(done / total, 0.0), 1.0)) if total else None
