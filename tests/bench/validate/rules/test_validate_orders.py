"""The check of orders: of a few samples two epochs have the same by chance, of many never."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.validate.checks.data import FEW, _in_order
from bench.validate.records.run_records import Records
from ddp.core.messages.event_parts import Trained
from ddp.core.messages.events import Ready
from ddp.permutation import visited
from ddp.tally import order_tally
from tests.bench.validate.told import DATA


def records(samples: int, orders: tuple[int, ...]) -> tuple[Any, Records]:
    """Of a run of seed 3 whose epochs have the orders of these."""
    ready = Ready(0.0, 0, samples, 10, "", "cpu", "")
    place = np.arange(samples)
    tallies = [order_tally(place, visited(3, epoch, samples, samples)) for epoch in orders]
    told = [Trained(float(n), 0, n, samples, None, None, order) for n, order in enumerate(tallies)]
    return SimpleNamespace(metrics=SimpleNamespace(seed=3)), Records(ready=[ready], trained=told)


@pytest.mark.parametrize(("samples", "orders", "wrong"), [(1, (0, 0), 0), (FEW, (0, 1), 0), (FEW, (0, 0), 2)])
def test_few_samples_are_in_one_order_by_chance(samples: int, orders: tuple[int, ...], wrong: int) -> None:
    run, known = records(samples, orders)
    data = replace(DATA, training=replace(DATA.training, samples=samples))
    assert len(list(_in_order(cast(Any, run), known, data))) == wrong
