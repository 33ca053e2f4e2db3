"""Rounds follow the plan: no window is longer than the orders in force allow, and no order exceeds the policy's
settings.

Orders must also follow the rule of a policy that sizes windows by the learning rate
(`bench.validate.rules.window_rule`), and the guard (`bench.validate.rules.guard_rule`). Step counts are upper bounds,
as the end of an epoch cuts windows short. With a blocking backend all ranks together train what is ordered, whoever
takes over whose steps. With a non-blocking one a rank may be a window ahead, and each follows an order of its own. An
order is in force if it was given since the round before the last, because the work granted under it may end only now;
with a non-blocking backend since the round before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from bench.base.number_format import plural
from bench.results.runfolder import Run, group_of
from bench.results.schema import Elche, Metrics
from bench.validate.records.run_records import UNBLOCKED, Records
from bench.validate.rules.guard_rule import against_guard
from bench.validate.rules.window_rule import (
    above_need,
    apart_from_plan,
    apart_from_settings,
    apart_from_speeds,
    below_need,
    beyond_lead,
    off_rule,
)
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.policies import POLICIES


def check(case: Case) -> Verdict | None:
    """Return FAIL if a window or an order is too long; None if runs have no windows. Of runs that lost ranks, only the
    policy's settings are judged."""
    kept = [(run, run.metrics.elche) for run in case.cell.runs if run.metrics.status == "ok"]
    schedules = [(run, elche) for run, elche in kept if elche is not None and elche.windows]
    for run, elche in schedules:
        settings = group_of(run.config, "policy")
        began = run.metrics.resumed is None  # else the first order uses measurements from before
        wrong = beyond_settings(elche, settings, began)
        if not wrong and not run.metrics.faults:
            wrong = beyond_orders(run.metrics, elche, settings) or case.derivation.value(_against_rules, run) or ""
        if wrong:
            return verdict("FAIL", "windows", case.cell, f"seed {run.metrics.seed}, {wrong}")
    windows = sum(len(elche.windows) for run, elche in schedules if not run.metrics.faults)
    line = f"none of {plural(windows, 'window')} is longer than ordered"
    return verdict("PASS", "windows", case.cell, line) if windows else None


def _against_rules(run: Run, known: Records) -> str:
    """Name the order that does not follow the rule of its policy; empty: none."""
    return next(filter(None, _rules(run.metrics, known, group_of(run.config, "policy"))), "")


def _rules(m: Metrics, known: Records, settings: Mapping[str, JsonValue]) -> Iterator[str]:
    yield off_rule(m, known, settings)
    if POLICIES.is_ours(str(settings.get("name"))):  # a custom policy has its own settings
        yield apart_from_settings(m, known, settings)
        yield apart_from_plan(m, known, settings)
        yield beyond_lead(m, known, settings)
        yield above_need(m, known, settings)
        yield below_need(m, known, settings)
        yield apart_from_speeds(m, known, settings)
        yield against_guard(m, known, settings)


def beyond_settings(elche: Elche, settings: Mapping[str, JsonValue], began: bool = True) -> str:
    """Name the order that exceeds the settings of its policy; empty: none. `began`: the first order is the run's first
    one."""
    first, least, most = (settings.get(name) for name in ("anchor", "min_anchor", "max_anchor"))
    first = max(first, least) if isinstance(first, int) and isinstance(least, int) else first
    if (
        began
        and isinstance(first, int)
        and elche.plans
        and elche.plans[0].anchor > first
        and not settings.get("partition_ratios")
    ):
        return f"first order: an anchor of {elche.plans[0].anchor}, but anchor is set to {first}"
    for plan in elche.plans:
        if isinstance(most, int) and plan.anchor > max(most, 1):
            return f"order at {plan.seconds:.2f} s: an anchor of {plan.anchor}, but max_anchor is set to {most}"
    return ""


def beyond_orders(m: Metrics, elche: Elche, settings: Mapping[str, JsonValue]) -> str:
    """Name the window that is longer than the orders in force allow; empty: none."""
    lead = settings.get("max_overshoot")
    beyond = m.world_size * (lead if isinstance(lead, int) else 0)
    windows = 2 if m.backend == UNBLOCKED else 1
    ends = [*[float("-inf")] * (windows + 1), *(row.seconds for row in elche.windows)]
    for row, since in zip(elche.windows, ends, strict=False):
        given = [plan for plan in elche.plans if plan.seconds <= row.seconds]
        older = [plan for plan in given if plan.seconds <= since][-1:]
        orders = [*older, *(plan for plan in given if plan.seconds > since)]
        if not orders:
            continue  # it began before the record does
        counts = [plan.counts for plan in orders]
        apart = m.backend == UNBLOCKED  # ranks may follow different orders
        ordered = sum(map(max, zip(*counts, strict=False))) if apart else max(map(sum, counts))
        most = windows * ordered + beyond + m.world_size
        if sum(row.steps) > most:
            steps = " + ".join(map(str, row.steps))
            return (
                f"round {row.round}: windows of {steps} steps, at most {most} in all are ordered ({orders[-1].counts})"
            )
    return ""
