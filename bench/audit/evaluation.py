"""Evaluates the final model again: on the test set, in evaluation mode, part by part as the ranks had it."""

from __future__ import annotations

from math import isclose, isnan, nan

import numpy as np
import torch

from bench.audit.again import Bench, moved
from bench.audit.compare import DEVICE_ROUNDING, shake_of
from bench.audit.definitions import defined, is_near
from bench.audit.order import AuditOrder
from bench.audit.reading import rows

SHAKES, SIZE, SLACK = 3, 8.0, 4.0
"""So often it is evaluated with parameters that are off by so many times what a step is tried with; the figures may be off
by so many times what that changes. A sample whose two best answers are as good as equal may be counted either way."""
ROUNDING = 1e-6
"""Of a loss: what sums in another order may be off by."""
EXACT = 1e-5
"""Of figures by definition: nearer than one sample of many, farther than roundings of a sum."""


def different(bench: Bench, order: AuditOrder, recorded: tuple[float | None, float | None]) -> str:
    """Return what is not as `recorded` (loss, metric) of the evaluation of the model that `bench` has; empty: nothing."""
    if not len(bench.test_data):
        return ""
    (loss, metric), known = evaluate(bench, order.world_size)
    same = known is None or all(isclose(*pair, rel_tol=EXACT) for pair in zip(known, (loss, metric), strict=True))
    if (loss, metric) == recorded and same:
        return ""
    size = SIZE * (DEVICE_ROUNDING / 8 if order.coarse else shake_of(list(bench.parameters.values())))
    shaken = [_shaken(bench, order.world_size, size, number) for number in range(SHAKES)]
    spread = [max(abs(each[k] - value) for each in shaken) for k, value in enumerate((loss, metric))]
    noise = [SLACK * each + ROUNDING * abs(value) for each, value in zip(spread, (loss, metric), strict=True)]
    lines = []
    for what, ours, again, slack in (
        ("metric", recorded[1], metric, noise[1]),
        ("test loss", recorded[0], loss, noise[0]),
    ):
        if ours is not None and not abs(ours - again) <= slack:
            lines.append(f"{what}: {ours:.6g} in the run, {again:.6g} done again")
    if known is not None and not lines and not same:
        if not (is_near(loss, known[0]) or abs(loss - known[0]) <= noise[0]):
            lines.append(f"test loss: {loss:.6g} by the set-up's function, {known[0]:.6g} by its definition")
        if not abs(metric - known[1]) <= noise[1]:
            lines.append(
                f"metric of the test set: {metric:.6g} by the set-up's function, {known[1]:.6g} by its definition"
            )
    return "; ".join(lines)


@torch.no_grad()
def evaluate(bench: Bench, ranks: int) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return mean loss and metric over the test set, of which each rank has a part; and what both are by definition, None
    where that is not known."""
    task, model, source = bench.task, bench.model, bench.test_data
    model.eval()
    size, loss, metric, known = len(source), 0.0, 0.0, [0.0, 0.0]
    for rank in range(ranks):
        first, last = size * rank // ranks, size * (rank + 1) // ranks
        for start in range(first, last, task.eval_batch):
            indices = np.arange(start, min(start + task.eval_batch, last))
            batch = moved(rows(source, indices), bench.device)
            weight = len(indices) if task.means else 1
            losses, metrics = task.evaluate(model, batch)
            loss, metric = loss + float(losses) * weight, metric + float(metrics) * weight
            own = defined(bench.rules.model, bench.outputs, batch) or (nan, nan)
            known = [total + part for total, part in zip(known, own, strict=True)]
    mean = (known[0] / size, known[1] / size)
    return (loss / size, metric / size), None if isnan(mean[0]) else mean


@torch.no_grad()
def _shaken(bench: Bench, ranks: int, size: float, number: int) -> tuple[float, float]:
    """Return the same with each parameter off by `size` of itself."""
    kept = {name: parameter.detach().clone() for name, parameter in bench.parameters.items()}
    bench.shake(size, number)
    figures, _ = evaluate(bench, ranks)
    for name, parameter in bench.parameters.items():
        parameter.copy_(kept[name])
    return figures
