"""Repeats the evaluation of a model: on the test set, in evaluation mode, in the parts that the ranks had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isclose, isnan, nan

import numpy as np
import torch
from torch import nn

from bench.audit.audit_input import AuditOrder
from bench.audit.bundled.definitions import defined, is_near
from bench.audit.documented.reading import rows
from bench.audit.documented.seeds import seed_of
from bench.audit.kept_files import EvaluatedBatch
from bench.audit.repeated.compare import DEVICE_ROUNDING, shake_of
from bench.audit.repeated.repeated_step import Bench, moved

Span = tuple[int, int]
"""(start, stop) positions of a batch in the test set."""

SHAKES, SIZE, SLACK = 3, 8.0, 4.0
"""Number of evaluations with perturbed parameters; their perturbation, as a multiple of that for steps; and factor on
the measured effect. A sample whose two best answers are nearly equal may be counted either way."""
BATCHES = 1000
"""Most batches of an evaluation that ranks keep."""
ROUNDING = 1e-6
"""Relative error of a loss whose sums have another order."""
EXACT = 1e-5
"""Relative tolerance against definitions: less than one sample of many, more than the rounding of a sum."""


def different(
    bench: Bench, order: AuditOrder, recorded: tuple[float | None, float | None], spans: Sequence[Span] | None = None
) -> str:
    """Say how the evaluation of the model in `bench` differs from the `recorded` (loss, metric); empty: it does not.
    `spans`: positions of the batches; None: the whole test set."""
    if not len(bench.test_data):
        return ""
    spans = parts_of(bench, order.eval_parts or order.world_size) if spans is None else spans
    (loss, metric), known = evaluate(bench, spans)
    same = known is None or all(isclose(*pair, rel_tol=EXACT) for pair in zip(known, (loss, metric), strict=True))
    if (loss, metric) == recorded and same:
        return ""
    size = SIZE * (DEVICE_ROUNDING / 8 if order.coarse else shake_of(list(bench.parameters.values())))
    shaken = [_shaken(bench, spans, size, number) for number in range(SHAKES)]
    spread = [max(abs(each[k] - value) for each in shaken) for k, value in enumerate((loss, metric))]
    noise = [SLACK * each + ROUNDING * abs(value) for each, value in zip(spread, (loss, metric), strict=True)]
    lines = []
    for what, ours, again, slack in (
        ("metric", recorded[1], metric, noise[1]),
        ("test loss", recorded[0], loss, noise[0]),
    ):
        if ours is not None and not abs(ours - again) <= slack:
            lines.append(f"{what}: {ours:.6g} in the run, {again:.6g} recomputed")
    if known is not None and not lines and not same:
        if not (is_near(loss, known[0]) or abs(loss - known[0]) <= noise[0]):
            lines.append(f"test loss: {loss:.6g} by the set-up's function, {known[0]:.6g} by its definition")
        if not abs(metric - known[1]) <= noise[1]:
            lines.append(
                f"metric of the test set: {metric:.6g} by the set-up's function, {known[1]:.6g} by its definition"
            )
    return "; ".join(lines)


def repeats(bench: Bench, order: AuditOrder, spans: Sequence[Span] | None = None) -> bool:
    """Return whether two evaluations of the model in `bench` agree; they do not if the model draws random numbers."""
    spans = parts_of(bench, order.eval_parts or order.world_size) if spans is None else spans
    (first, _), (then, _) = evaluate(bench, spans), evaluate(bench, spans)
    near = DEVICE_ROUNDING if order.coarse else 0.0
    return first == then or all(isclose(*pair, rel_tol=near) for pair in zip(first, then, strict=True))


def spot(epoch: int, batches: Mapping[int, Sequence[EvaluatedBatch]], order: AuditOrder) -> EvaluatedBatch:
    """Return the evaluated batch, of any rank, that is to be repeated; drawn by the run and the epoch."""
    every = [batch for rank in sorted(batches) for batch in batches[rank]]
    return every[seed_of(order.seed, "spot", order.run_id, epoch) % len(every)]


def added_up(batches: Sequence[EvaluatedBatch], reported: tuple[float | None, float | None]) -> str:
    """Say that the batches of a rank do not add up to its report (sums of loss and metric); empty: they do."""
    sums = zip(*(batch[2:] for batch in batches), strict=True)
    for what, values, total in zip(("losses", "metrics"), sums, reported, strict=True):
        parts = [value for value in values if value is not None]
        whole = len(parts) == len(batches) and len(parts) < BATCHES
        if whole and total is not None and not isclose(sum(parts), total, rel_tol=EXACT, abs_tol=EXACT):
            return f"sum of the {what}: {total:.6g} in the run, its batches add up to {sum(parts):.6g}"
    return ""


def parts_of(bench: Bench, ranks: int) -> list[Span]:
    """Return the positions of all batches; each rank evaluates one part of the test set."""
    size, most = len(bench.test_data), bench.task.eval_batch
    ends = [(size * rank // ranks, size * (rank + 1) // ranks) for rank in range(ranks)]
    return [(start, min(start + most, last)) for first, last in ends for start in range(first, last, most)]


@torch.no_grad()
def moving(bench: Bench) -> set[str]:
    """Return the names of buffers that the model changes during an evaluation, such as a counter of calls."""
    if not len(bench.test_data) or not bench.buffers:
        return set()
    bench.load(bench.initial)
    evaluate(bench, parts_of(bench, 1)[:1])
    after = bench.state(None)
    return {name.name for name, before in bench.initial.items() if not torch.equal(after[name], before)}


@torch.no_grad()
def evaluate(bench: Bench, spans: Sequence[Span]) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return (mean loss, mean metric) over batches of the test set, and both by definition; None if there is no
    definition."""
    task, model, source = bench.task, bench.model, bench.test_data
    size, loss, metric, known = sum(stop - start for start, stop in spans), 0.0, 0.0, [0.0, 0.0]
    with _in_evaluation_mode(model):
        for start, stop in spans:
            batch = moved(rows(source, np.arange(start, stop)), bench.device)
            weight = stop - start if task.means else 1
            losses, metrics = task.evaluate(model, batch)
            loss, metric = loss + float(losses) * weight, metric + float(metrics) * weight
            own = defined(bench.rules.model, bench.outputs, batch) or (nan, nan)
            known = [total + part for total, part in zip(known, own, strict=True)]
    mean = (known[0] / size, known[1] / size)
    return (loss / size, metric / size), None if isnan(mean[0]) else mean


@contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Run a block in evaluation mode. Modules with a `train` of their own may do more there, such as merge weights: they
    get their modes back by it, and their parameters keep their values."""
    modes = {module: module.training for module in model.modules()}
    own = [module for module in modes if type(module).train is not nn.Module.train]
    kept = {parameter: parameter.detach().clone() for module in own for parameter in module.parameters()}
    model.eval()
    try:
        yield
    finally:
        model.train()
        for module, training in modes.items():
            if module.training is not training:
                module.train(training)
        for parameter, values in kept.items():
            parameter.detach().copy_(values)


@torch.no_grad()
def _shaken(bench: Bench, spans: Sequence[Span], size: float, number: int) -> tuple[float, float]:
    """Return mean loss and metric with each parameter perturbed by the relative `size`."""
    kept = {name: parameter.detach().clone() for name, parameter in bench.parameters.items()}
    bench.shake(size, number)
    figures, _ = evaluate(bench, spans)
    for name, parameter in bench.parameters.items():
        parameter.copy_(kept[name])
    return figures
