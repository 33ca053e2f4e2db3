"""Evaluates the final model again: on the test set, in evaluation mode, part by part as the ranks had it."""

from __future__ import annotations

import numpy as np
import torch

from bench.audit.again import Bench, moved
from bench.audit.compare import DEVICE_ROUNDING, shake_of
from bench.audit.order import AuditOrder
from bench.audit.reading import rows

SHAKES, SIZE, SLACK = 3, 8.0, 4.0
"""So often it is evaluated with parameters that are off by so many times what a step is tried with; the figures may be off
by so many times what that changes. A sample whose two best answers are as good as equal may be counted either way."""
ROUNDING = 1e-6
"""Of a loss: what sums in another order may be off by."""


def different(bench: Bench, order: AuditOrder, sha256: str) -> str:
    """Return what is not as recorded of the model of the end, which `bench` has, and of its evaluation; empty: nothing."""
    if order.params_sha256 is not None and sha256 != order.params_sha256:
        return f"the model kept at the end is {sha256[:16]}, {order.params_sha256[:16]} was recorded"
    if not len(bench.test_data):
        return ""
    loss, metric = evaluate(bench, order.world_size)
    if (loss, metric) == (order.eval_loss, order.eval):
        return ""
    size = SIZE * (DEVICE_ROUNDING / 8 if order.coarse else shake_of(list(bench.parameters.values())))
    shaken = [_shaken(bench, order.world_size, size, number) for number in range(SHAKES)]
    spread = [max(abs(each[k] - value) for each in shaken) for k, value in enumerate((loss, metric))]
    lines = []
    for what, ours, again, noise in (
        ("final metric", order.eval, metric, spread[1]),
        ("test loss", order.eval_loss, loss, spread[0]),
    ):
        if ours is not None and not abs(ours - again) <= SLACK * noise + ROUNDING * abs(again):
            lines.append(f"{what}: {ours:.6g} in the run, {again:.6g} done again")
    return "; ".join(lines)


@torch.no_grad()
def evaluate(bench: Bench, ranks: int) -> tuple[float, float]:
    """Return mean loss and metric over the test set, of which each rank has a part."""
    task, model, source = bench.task, bench.model, bench.test_data
    model.eval()
    size, loss, metric = len(source), 0.0, 0.0
    for rank in range(ranks):
        first, last = size * rank // ranks, size * (rank + 1) // ranks
        for start in range(first, last, task.eval_batch):
            indices = np.arange(start, min(start + task.eval_batch, last))
            batch = moved(rows(source, indices), bench.device)
            weight = len(indices) if task.means else 1
            losses, metrics = task.evaluate(model, batch)
            loss, metric = loss + float(losses) * weight, metric + float(metrics) * weight
    return loss / size, metric / size


@torch.no_grad()
def _shaken(bench: Bench, ranks: int, size: float, number: int) -> tuple[float, float]:
    """Return the same with each parameter off by `size` of itself."""
    kept = {name: parameter.detach().clone() for name, parameter in bench.parameters.items()}
    bench.shake(size, number)
    figures = evaluate(bench, ranks)
    for name, parameter in bench.parameters.items():
        parameter.copy_(kept[name])
    return figures
