"""The cost of synchronizing replicas, and the schedule that the policy arrived at."""

from __future__ import annotations

import numpy as np

from bench.results.analysis.stream import Floats, RunRecords, Slices
from bench.results.live.run import is_change
from bench.results.schema import Elche, GuardRow, PlanRow, SyncTotals, WindowRow
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Averaged, GuardVerdict, RoundClosed


def sync(stream: RunRecords) -> SyncTotals:
    """Return the totals of the rounds of averaging, or without rounds of the collectives inside steps."""
    if stream.of(RoundClosed):
        cost = np.array([event.sync_s for event in stream.of(RoundClosed)])
        if not stream.of(Averaged) and (payload := collectives(stream.slices)[1]):
            # Each round exchanged the gradients of a whole window, so replicas never diverged.
            return _sync("gradients", cost, payload, None)
        apart = [value for event in stream.of(RoundClosed) for value in event.divergence]
        payload = sum(event.bytes for event in stream.of(Averaged))
        return _sync("parameters", cost, payload, float(np.median(apart)) if apart else None)
    (cost, payload), (hidden, more) = collectives(stream.slices), collectives(stream.behind)
    return _sync("gradients" if cost.size else "none", np.concatenate([cost, hidden]), payload + more, None)


def collectives(slices: Slices) -> tuple[Floats, int]:
    """Return (seconds on the wire of each collective, from the last arrival to the last end; bytes of all ranks)."""
    exchange, collective, arrival = slices.exchanges
    last = np.full(arrival.size, -np.inf)
    np.maximum.at(last, collective, slices.stop[exchange])
    return np.maximum(last - arrival, 0.0), int(slices.bytes[exchange].sum())


def exits(slices: Slices) -> tuple[Floats, Floats]:
    """Return (seconds of each collective from the last arrival to the first exit; [collective, 2] seconds from that exit to
    the exit of the last rank to arrive, and to those of the others on average)."""
    exchange, collective, arrival = slices.exchanges
    first = np.full(arrival.size, np.inf)
    np.minimum.at(first, collective, slices.stop[exchange])
    later = slices.stop[exchange] - first[collective]
    # Two bins a collective: of the last to arrive, and of those that waited.
    place = 2 * collective + (slices.start[exchange] < arrival[collective])
    sums, counts = (np.bincount(place, weights, 2 * arrival.size) for weights in (later, None))
    return np.maximum(first - arrival, 0.0), (sums / np.maximum(counts, 1)).reshape(-1, 2)


def _sync(kind: str, cost: Floats, payload: int, divergence: float | None) -> SyncTotals:
    p50, p95 = (float(v) * 1e3 for v in np.percentile(cost, [50, 95])) if cost.size else (None, None)
    return SyncTotals.model_validate(
        {"kind": kind, "count": cost.size, "bytes": payload, "ms_p50": p50, "ms_p95": p95, "divergence_p50": divergence}
    )


def elche(stream: RunRecords) -> Elche | None:
    """Return the schedule and its history; None if there was no plan, or averaging was inside every step."""
    plans = [(at, plan) for at, plan in stream.plans if not plan.in_step]
    if not plans:
        return None
    before = [None, *(plan for _, plan in plans)]
    return Elche(
        anchor=plans[-1][1].anchor,
        counts=list(plans[-1][1].counts),
        plans=[
            plan_row(plan, at - stream.zero)
            for (at, plan), last in zip(plans, before, strict=False)
            if is_change(plan, last)
        ],
        windows=[_window_row(window, window.at - stream.zero) for window in stream.of(RoundClosed)],
        guard=[
            GuardRow.model_validate(
                {name: getattr(verdict, name) for name in GuardRow.model_fields if name != "seconds"}
                | {"seconds": verdict.at - stream.zero}
            )
            for verdict in stream.of(GuardVerdict)
        ],
    )


def plan_row(plan: Plan, seconds: float) -> PlanRow:
    """Return the row of a plan that is in force from `seconds` since launch."""
    return PlanRow(seconds=seconds, anchor=plan.anchor, counts=list(plan.counts), phase=plan.phase, reason=plan.reason)


def _window_row(window: RoundClosed, seconds: float) -> WindowRow:
    work = zip(window.busy_s, window.steps, strict=True)
    ms = [1e3 * busy / steps if steps else None for busy, steps in work]
    return WindowRow(seconds=seconds, round=window.round, steps=list(window.steps), ms_per_batch=ms)
