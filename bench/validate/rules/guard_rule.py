"""What the divergence guard must have said of each average, and that windows followed it. Pure. Recomputes the rule;
must not import the guard."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import ceil, log

from pydantic import JsonValue

from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.rules.window_rule import is_cut, longest_window
from ddp.core.messages.commands import Plan

WINDOW = re.compile(r"window (\d+),")
"""How the reason of a plan begins that was made after a round."""
RING, RISING = 5, 3
"""Divergences that `level` remembers, and how many in a row must rise."""
FLOOR, DECAY, STREAK = 1e-8, 0.9, 3
SUPPRESS, NUDGE = 1e-3, 1e-2
"""For `growth`: the least divergence, the decay of the moving mean, the rounds in a row above a limit, and both limits
per step."""
HALF = 0.5
"""Factor on a window after a nudge."""
QUIET = 5
"""Stable verdicts in a row after which windows may grow again."""


def against_guard(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> str:
    """Name the recorded verdict that differs from the recomputed one, or the window that grew against a verdict; empty:
    none. Resumed runs are not judged, as the divergences before the checkpoint are not known."""
    threshold = settings.get("divergence_threshold")
    if m.elche is None or m.resumed or m.begun_without or not isinstance(threshold, float) or not known.closed:
        return ""
    name = "none" if settings.get("no_divergence_guard") else settings.get("guard")
    if name not in ("level", "growth", "none"):
        return ""
    verdicts = dict(_level(known, threshold) if name == "level" else _growth(known) if name == "growth" else ())
    recorded = {row.round: row.verdict for row in m.elche.guard}
    for event in known.closed:
        due, given = (each.get(event.round, "stable") for each in (verdicts, recorded))
        if due != given:
            most = max(event.divergence)
            return (
                f"round {event.round}: the guard ({name}) reported {given}, but a divergence of {most:.4g} means {due}"
            )
    apart = settings.get("max_batch_diff") is not None or settings.get("partition_ratios")
    return "" if apart else _grown(known, verdicts, longest_window(m, known))


def _level(known: Records, threshold: float) -> Iterator[tuple[int, str]]:
    """Yield (round, verdict) where the divergence is above the threshold and rises."""
    ring: list[float] = []
    for event in known.closed:
        ring = [*ring, max(event.divergence)][-RING:]
        rising = [before < after for before, after in pairwise(ring)]
        if ring[-1] > threshold and len(ring) >= RISING and all(rising[1 - RISING :]):
            yield event.round, "nudge" if len(ring) == RING and all(rising) else "suppress"
            ring = [] if len(ring) == RING and all(rising) else ring


def _growth(known: Records) -> Iterator[tuple[int, str]]:
    """Yield (round, verdict) where the divergence has grown too fast per step, several rounds in a row."""
    last, mean, count, above, far = 0.0, 0.0, 0, 0, 0
    for event in known.closed:
        most, steps = max(event.divergence), max(event.steps)
        if most < FLOOR or not steps or not last:
            last, mean, count, above, far = most if most >= FLOOR and steps else 0.0, 0.0, 0, 0, 0
            continue
        mean, count = DECAY * mean + (1 - DECAY) * log(most / last) / steps, count + 1
        growth, last = mean / (1 - DECAY**count), most
        above, far = (above + 1 if growth > SUPPRESS else 0), (far + 1 if growth > NUDGE else 0)
        if far >= STREAK:
            yield event.round, "nudge"
            last, mean, count, above, far = 0.0, 0.0, 0, 0, 0
        elif above >= STREAK:
            yield event.round, "suppress"


def _grown(known: Records, verdicts: Mapping[int, str], most: int) -> str:
    """Name the round after which windows grew though the guard was not content, or did not halve after a nudge; empty:
    none."""
    content, plans = QUIET, {_window(plan): plan for plan in known.plans}
    before = plans.get(-1)
    for event in known.closed:
        verdict = verdicts.get(event.round, "stable")
        content = content + 1 if verdict == "stable" else 0
        after = plans.get(event.round, before)
        # The order behind a window that was cut at an epoch's end is not known.
        if before is not None and after is not None and not is_cut(before, most):
            allowed = max(1, ceil(before.anchor * HALF)) if verdict == "nudge" else before.anchor
            if content < QUIET and after.anchor > allowed:
                line = f"reported {verdict}" if verdict != "stable" else f"reported stable only {content} times"
                given = f"an anchor of {after.anchor} is ordered, at most {allowed} is allowed"
                return f"round {event.round}: {given}, as the guard {line}"
        before = after
    return ""


def _window(plan: Plan) -> int:
    """Return the round after which a plan was made; -1: none."""
    match = WINDOW.match(plan.reason)
    return int(match[1]) if match else -1
