"""What is shown of a run, as plain data for JSON: `row` for the list of runs, `live` and `about` for its page. Pure.

The page draws what it is given and computes nothing but scales. Numbers are rounded to what an eye can see; what is not
known is None. Times are in seconds since the first record, unless a name says otherwise.
"""

from __future__ import annotations

import json
import math
from typing import Any

from bench.analysis import faults
from bench.analysis.stream import Slices, Stream, Trouble
from bench.dashboard.about import RUNNING, About
from bench.dashboard.series import Cell
from bench.dashboard.state import Rank, Score, State
from ddp.core.commands import Drop
from ddp.core.events import Failed, Lost

Json = dict[str, Any]
DIGITS = 4
ALIKE = 0.02
"""Ranks whose speeds differ by less are as fast as each other."""


def row(about: About, state: State) -> Json:
    """A line in the list of runs: of one with a result what that says, else what its records do."""
    model, mode, run_id = about.name
    known = {"key": about.key, "model": model, "mode": mode, "run_id": run_id, "status": about.status}
    metrics = about.metrics
    if metrics is not None:
        last = metrics.epochs[-1] if metrics.epochs else None
        return known | {
            "progress": 1.0 if metrics.status == "ok" else _part(len(metrics.epochs), metrics.epochs_planned),
            "epoch": len(metrics.epochs),
            "epochs": metrics.epochs_planned,
            "seconds": _short(metrics.time_s.total),
            "left_s": None,
            "samples_per_s": _short(metrics.throughput.samples_per_s),
            "loss": _short(metrics.final.train_loss),
            "eval": _short(metrics.final.eval),
            "metric": metrics.final.eval_metric,
            "lr": _short(last.lr if last else None),
            "lost": sum(fault.rank is not None for fault in metrics.faults),
        }
    seconds = state.since(state.now)
    done = [score for _, score in sorted(state.epochs.items()) if score.samples]
    evaluated = [score for score in done if _eval(score) is not None]
    return known | {
        "progress": _part(state.samples, _total(about, state)),
        "epoch": sum(_whole(score) for score in done),
        "epochs": about.epochs or None,
        "seconds": _short(seconds),
        "left_s": left_s(about, state) if about.status == RUNNING else None,
        "samples_per_s": _short(_rate(state)),
        "loss": _short(_ratio(done[-1].loss, done[-1].samples)) if done else None,
        "eval": _short(_eval(evaluated[-1])) if evaluated else None,
        "metric": None,
        "lr": _short(done[-1].lr) if done else None,
        "lost": sum(rank.lost is not None for rank in state.ranks.values()),
    }


def left_s(about: About, state: State) -> float | None:
    """Seconds that the rest of the samples will take, at the speed so far."""
    total, rate = _total(about, state), _rate(state)
    return _short(max(total - state.samples, 0) / rate) if total and rate else None


def _total(about: About, state: State) -> int:
    """Samples of the whole run; 0: not known."""
    return about.epochs * next((rank.ready.samples for rank in state.ranks.values() if rank.ready), 0)


def _rate(state: State) -> float | None:
    """Samples per second so far, evaluation included."""
    seconds = state.now - state.began if state.began is not None else 0.0
    return (state.samples - state.before) / seconds if seconds > 0 and state.samples > state.before else None


def about(about: About) -> Json:
    """What does not change while a run lasts: configuration and graph; and its result, once there is one."""
    return {"key": about.key, "config": flat(about.config), "graph": about.graph, "result": result(about)}


def flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Dotted keys and values as text, in the order of the file."""
    if not isinstance(config, dict) or not config:
        return [(prefix, _text(config))] if prefix else []
    return [pair for key, value in config.items() for pair in flat(value, f"{prefix}.{key}" if prefix else str(key))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def result(about: About) -> Json | None:
    """What came out."""
    m = about.metrics
    if m is None:
        return None
    return {
        "error": m.error,
        "data": m.data,
        "target": m.target.model_dump() if m.target else None,
        "time_s": {name: _short(getattr(m.time_s, name)) for name in ("total", "startup", "train", "eval")},
        "efficiency": _short(m.throughput.efficiency),
        "breakdown": [{k: _short(v) for k, v in shares.model_dump().items()} for shares in m.breakdown],
        "peak_rss_bytes": m.memory.peak_rss_bytes,
        "warnings": m.warnings,
        "git": m.git.model_dump() if hasattr(m.git, "model_dump") else m.git,
    }


def live(about: About, state: State) -> Json:
    """What changes while a run lasts: ranks, curves, epochs, the controller, faults."""
    size = about.world_size or len(state.ranks)
    return {
        "key": about.key,
        "world_size": size,
        "parameters": next((rank.ready.parameters for rank in state.ranks.values() if rank.ready), None),
        "transport": next((rank.ready.transport for rank in state.ranks.values() if rank.ready), None),
        "samples": state.samples,
        "ranks": ranks(state, size),
        "curves": curves(state),
        "epochs": [epoch(number, score) for number, score in sorted(state.epochs.items()) if score.samples],
        "controller": controller(state),
        "faults": troubles(about, state, size),
        "notes": notes(about, state),
    }


def notes(about: About, state: State) -> list[str]:
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


def ranks(state: State, size: int) -> list[Json]:
    """Each rank, the fastest and the slowest of those that train marked by `mark`, where their speeds differ."""
    speeds = {number: speed for number in range(size) if (speed := _speed(state, number)) is not None}
    marks: dict[int, str] = {}
    if len(speeds) > 1 and max(speeds.values()) > min(speeds.values()) * (1 + ALIKE):
        marks = {min(speeds, key=speeds.__getitem__): "slowest", max(speeds, key=speeds.__getitem__): "fastest"}
    latest = {number: _latest(state, number) for number in range(size)}
    cohort = sum(cell.samples for cell in latest.values())
    rows = []
    for number in range(size):
        rank, cell = state.ranks.get(number, Rank()), latest[number]
        rows.append(
            {
                "rank": number,
                "state": _standing(rank),
                "mark": marks.get(number),
                "device": rank.ready.device if rank.ready else None,
                "loader": rank.ready.loader if rank.ready else None,
                "lost_s": _short(state.since(rank.lost)) if rank.lost is not None else None,
                "epoch": rank.epoch if rank.epoch >= 0 else None,
                "steps": rank.steps,
                "samples": rank.samples,
                "samples_per_s": _short(_ratio(cell.samples, cell.seconds)),
                "share": _short(_ratio(cell.samples, cohort)),
                "step_ms": _short(_ratio(cell.busy_s * 1e3, cell.steps)),
                "speed": _short(speeds.get(number)),
                "cpu": _short(_ratio(cell.cpu_s, cell.used_s)),
                "rss_bytes": rank.rss_bytes or None,
                "peak_rss_bytes": rank.peak_rss_bytes or None,
            }
        )
    return rows


def _standing(rank: Rank) -> str:
    if rank.lost is not None:
        return "lost"
    if rank.finished:
        return "finished"
    return "training" if rank.steps else "ready" if rank.ready else "starting"


def _latest(state: State, rank: int) -> Cell:
    """What a rank did in the last stretches in which it reported: 8 of them, or a sixth of the run."""
    cells = [cell for cell in state.series.ranks.get(rank, ()) if cell.seconds > 0]
    total = Cell()
    for cell in cells[-max(8, len(cells) // 6) :]:
        total = total.plus(cell)
    return total


def _speed(state: State, rank: int) -> float | None:
    """Samples per busy second of late; None of a rank that is lost, or has not trained."""
    cell = _latest(state, rank)
    return _ratio(cell.samples, cell.busy_s) if state.ranks.get(rank, Rank()).lost is None else None


def curves(state: State) -> Json:
    """By rank what it did over time, one value for each stretch of `width_s`; and of all together, as rank `all`."""
    series = state.series
    columns = {
        number: list(cells) + [Cell()] * (series.length - len(cells)) for number, cells in sorted(series.ranks.items())
    }
    together = [_together(cells) for cells in zip(*columns.values(), strict=True)]
    sums = [cell.samples for cell in together]
    seen, epochs = 0.0, []
    per_epoch = next((rank.ready.samples for rank in state.ranks.values() if rank.ready), 0)
    for samples in sums:
        epochs.append(_short(_ratio(seen + samples / 2, per_epoch)))
        seen += samples
    lines = {str(number): _lines(column, sums) for number, column in columns.items()}
    lines["all"] = {name: _lines(together, sums)[name] for name in ("loss", "samples_per_s")}
    return {"width_s": series.width, "epoch": epochs, "ranks": lines}


def _together(cells: tuple[Cell, ...]) -> Cell:
    total = Cell()
    for cell in cells:
        total = total.plus(cell)
    return total._replace(seconds=max(cell.seconds for cell in cells))  # time does not add up over ranks


def _lines(cells: list[Cell], sums: list[float]) -> dict[str, list[float | None]]:
    return {
        "loss": [_short(_ratio(c.loss_sum, c.samples)) for c in cells],
        "samples_per_s": [_short(_ratio(c.samples, c.seconds)) for c in cells],
        "share": [_short(_ratio(c.samples, total)) for c, total in zip(cells, sums, strict=True)],
        "step_ms": [_short(_ratio(c.busy_s * 1e3, c.steps)) for c in cells],
        "cpu": [_short(_ratio(c.cpu_s, c.used_s)) for c in cells],
        "rss_bytes": [round(c.rss) or None for c in cells],
        "device_bytes": [round(c.device) or None for c in cells],
    }


def epoch(number: int, score: Score) -> Json:
    """An epoch, from 0; `eval` once all of its evaluation is in."""
    return {
        "epoch": number,
        "samples": score.seen,
        "seconds": _short(score.seconds),
        "loss": _short(_ratio(score.loss, score.samples)),
        "eval": _short(_eval(score)),
        "eval_loss": _short(_ratio(score.eval_loss, score.eval_samples)) if _whole(score) else None,
        "lr": _short(score.lr),
    }


def _whole(score: Score) -> bool:
    return score.evaluated >= score.parts > 0


def _eval(score: Score) -> float | None:
    return _ratio(score.metric, score.eval_samples) if _whole(score) else None


def controller(state: State) -> Json:
    """Anchor and counts over time, how far replicas came apart, and what the guard said of it."""
    plan = state.plan
    return {
        "in_step": plan.in_step if plan else None,
        "anchor": plan.anchor if plan else None,
        "counts": list(plan.counts) if plan else [],
        "phase": plan.phase if plan else None,
        "reason": plan.reason if plan else None,
        "rounds": state.rounds,
        "plans": [
            {"seconds": _short(p.seconds), "anchor": p.anchor, "counts": list(p.counts), "reason": p.reason}
            for p in state.plans
        ],
        "closed": [
            {
                "seconds": _short(c.seconds),
                "round": c.round,
                "divergence": _short(c.divergence),
                "ms": _short(c.sync_ms),
            }
            for c in state.closed
        ],
        "verdicts": [
            {
                "seconds": _short(seconds),
                "round": said.round,
                "guard": said.guard,
                "verdict": said.verdict,
                "divergence": _short(said.divergence),
                "value": _short(said.value),
                "limit": _short(said.limit),
                "factor": _short(said.factor),
            }
            for seconds, said in state.verdicts
        ],
    }


def troubles(about: About, state: State, size: int) -> list[Json]:
    """What went wrong, a line each; as the result has it, once there is one."""
    if about.metrics is not None:
        return [fault.model_dump() | {"seconds": _short(fault.seconds)} for fault in about.metrics.faults]
    if state.first is None:
        return []
    known: set[int] = set()
    trouble: list[tuple[float, Trouble]] = []
    for at, record in state.trouble:  # a rank is dropped once, and only one that there is
        if isinstance(record, Drop):
            if record.rank in known or record.rank >= size:
                continue
            known.add(record.rank)
        if not isinstance(record, Failed | Lost) or record.rank < size:
            trouble.append((at, record))
    rows = faults.faults(Stream(Slices.of(()), trouble=trouble), state.first, size)
    return [fault.model_dump() | {"seconds": _short(fault.seconds)} for fault in rows]


def _ratio(total: float, count: float) -> float | None:
    """None where nothing was counted, or what was is not finite."""
    return total / count if count > 0 and math.isfinite(total) else None


def _part(done: float, total: float) -> float | None:
    return _short(min(max(done / total, 0.0), 1.0)) if total else None


def _short(value: float | None) -> float | None:
    """Rounded to `DIGITS` significant digits."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
