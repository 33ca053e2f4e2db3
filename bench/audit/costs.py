"""Holds what ranks say that their model and its steps cost against the model and the steps that are here: parameters, bytes,
tokens, operations. Must not use the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isclose, prod
from typing import Any

import torch
from torch import Tensor

from bench.audit.again import Bench, moved
from bench.audit.order import AuditOrder
from bench.results.audit_file import AuditItem

COUNTED = 1e-3
"""Relative: operations of a sample, which are counted on a batch of some size."""


def costs(order: AuditOrder, bench: Bench) -> Iterator[AuditItem]:
    """Compare the figures of each rank; where ranks have parts of a model, those that are of the whole of it."""
    wanted: dict[str, float | None] = {"tokens": _tokens(bench)}
    if order.whole:
        wanted["parameter_bytes"] = sum(parameter.nbytes for parameter in bench.parameters.values())
        if bench.optimizer_bytes is not None:
            with_gradient = [p for p in bench.parameters.values() if p.grad is not None and not p.grad.is_sparse]
            wanted["gradient_bytes"] = sum(p.nbytes for p in with_gradient)
            wanted["optimizer_bytes"] = bench.optimizer_bytes
    if any(work.flop_per_sample is not None for work in order.works):
        wanted["flop_per_sample"] = _flop(bench)
    lines = list(_apart(order, wanted))
    count = sum(parameter.numel() for parameter in bench.parameters.values())
    if order.parameters is not None and order.parameters != count:
        lines.append((None, f"ranks counted {order.parameters:,} parameters, the model has {count:,}"))
    for rank, line in lines:
        yield AuditItem(what="cost", outcome="different", line=line, rank=rank)
    if order.works and not lines:
        yield AuditItem(what="cost", outcome="equal", line="what a step costs")


def _apart(order: AuditOrder, wanted: dict[str, float | None]) -> Iterator[tuple[int | None, str]]:
    for rank, work in enumerate(order.works):
        for name, value in wanted.items():
            counted = getattr(work, name)
            # Of a run of fewer than two steps the optimizer has no state when it is measured; a rank that came back at the
            # end did none.
            if value is None or counted is None or len(work.norms) < (2 if name == "optimizer_bytes" else 1):
                continue
            if not isclose(counted, value, rel_tol=COUNTED if name == "flop_per_sample" else 0.0):
                yield rank, f"{name} of rank {rank} is {counted:,}, the model's {value:,}"


def _first(bench: Bench) -> Any:
    return bench.batch(0, min(bench.rules.batch_size, bench.rules.samples))


def _tokens(bench: Bench) -> int:
    batch = _first(bench)
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else None
    text = isinstance(first, Tensor) and first.dim() == 2 and not first.is_floating_point()
    return int(first.shape[1]) if text and isinstance(first, Tensor) else 0


def _flop(bench: Bench) -> float:
    """Return the operations of a forward and a backward pass for each sample."""
    from torch.utils.flop_counter import FlopCounterMode

    batch = moved(_first(bench), bench.device)
    counter = FlopCounterMode(display=False, custom_mapping=_recurrent())
    with counter:
        bench.task.loss(bench.model, batch).backward()  # type: ignore[no-untyped-call]
    for parameter in bench.parameters.values():
        parameter.grad = None
    return float(counter.get_total_flops()) / min(bench.rules.batch_size, bench.rules.samples)


def _recurrent() -> dict[Any, Callable[..., int]]:
    """Return the operations of fused recurrent layers, which the counter takes for none: a token times every matrix,
    and two backwards. Arguments are shapes: inputs, then the matrices, one by one or in a list."""

    def forward(inputs: Sequence[int], *weights: Any, **_: Any) -> int:
        listed: Sequence[Sequence[int]] = (
            weights[0] if weights[0] and not isinstance(weights[0][0], int) else weights[:4]
        )
        return 2 * prod(inputs[:-1]) * sum(prod(shape) for shape in listed if len(shape) == 2)

    def backward(*shapes: Any, **named: Any) -> int:
        return 2 * forward(*shapes, **named)

    ops = torch.ops.aten
    passes = {ops.mkldnn_rnn_layer: forward, ops.mkldnn_rnn_layer_backward: backward}
    return {**passes, ops._cudnn_rnn: forward, ops._cudnn_rnn_backward: backward}
