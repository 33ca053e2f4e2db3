"""What an audit is ordered to hold a run against: what was asked for, whatever of it reached the ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.audit.order import order_of
from bench.config.config import TrainConfig
from ddp.core.step_settings import StepSettings
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
