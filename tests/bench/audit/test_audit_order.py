"""What an audit is ordered to hold a run against: what was asked for, whatever of it reached the ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.audit.audit_input import StepReport, order_of
from bench.audit.reports import resumed_rates
from bench.config.config import TrainConfig
from ddp.core.settings.steps import StepSettings
from tests.bench.planned import planned
from tests.bench.streams import make_metrics, make_records, make_spec


def test_a_setting_that_reached_no_rank_is_held_against_the_run() -> None:
    spec = make_spec("solo")
    metrics = make_metrics(spec, make_records(spec))
    train = TrainConfig(max_grad_norm=0.5, precision="bf16", accumulate=2)
    given = planned(train=train)
    lost = replace(given, job=replace(given.job, max_grad_norm=None, step=StepSettings()))
    for plan in (given, lost):
        order = order_of(plan, metrics, [], Path())
        assert order.max_grad_norm == 0.5
        assert order.step == StepSettings(accumulate=2, precision="bf16")
    plain = order_of(planned(), metrics, [], Path())
    assert (plain.max_grad_norm, plain.step) == (None, StepSettings())


@pytest.mark.parametrize(
    ("rates", "schedule", "callback", "found"),
    [
        ((0.9, 0.5, 0.5, 0.15, 0.15), (1.0, 1.0), False, True),
        ((0.9, 0.5, 0.5, 0.5, 0.5), (1.0, 1.0), False, False),
        ((0.9, 0.5, 0.5, 0.15, 0.15), (1.0, 0.3), False, False),  # a milestone may lie there
        ((0.9, 0.5, 0.4, 0.15, 0.15), (1.0, 1.0), False, False),  # something else sets rates within epochs
        ((0.9, 0.5, 0.5, 0.15, 0.15), (1.0, 1.0), True, False),  # a milestone of what a callback has set
        ((0.5 / 0.3, 0.5, 0.5, 0.15, 0.15), (1.0, 1.0), True, True),  # the callback was called once more
        ((0.15, 0.5, 0.5, 0.15, 0.15), (1.0, 1.0), True, True),  # what it did was lost
    ],
)
def test_a_rate_is_the_same_where_a_run_goes_on_in_an_epoch(
    rates: tuple[float, ...], schedule: tuple[float, float], callback: bool, found: bool
) -> None:
    first, *rest = rates
    reports = [StepReport(0, k, k + 1, 0, 8, 1.0, first) for k in range(2)]
    reports += [StepReport(0, k, k + 1, 1, 8, 1.0, rate, resumes=k // 4) for k, rate in enumerate(rest, 2)]
    order: Any = SimpleNamespace(reports=tuple(reports), resumed=True, planned=True)
    task = SimpleNamespace(epoch_callback=print if callback else None)
    rules = SimpleNamespace(samples=32)
    bench: Any = SimpleNamespace(task=task, rules=rules, rates=lambda seen: [schedule[seen > 48]])
    items = list(resumed_rates(order, bench))
    assert [item.outcome for item in items] == ["different"] * found
    assert all("was 0.5 before the run was resumed in this epoch, and 0.15 after" in item.line for item in items)
