"""Compares the costs that ranks recorded with those of the same model and steps here: parameters, bytes, tokens,
operations. Must not use the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import isclose, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from bench.audit.audit_input import AuditOrder
from bench.audit.kept_files import OPTIMIZER, Name
from bench.audit.repeated.repeated_step import Bench, Done, moved
from bench.results.audit_file import AuditItem
from ddp.core.settings.steps import PLAIN
from ddp.replica.scalars import Scalars

NEAR = {"flop_per_sample": 1e-3, "activation_bytes": 0.05}
"""Relative tolerances: operations per sample depend on the batch on which they are counted; other kernels keep other
activations."""

OF_PASS = 5
"""First version of results in which activation bytes are those of one pass alone."""
TRIES = 8
"""Passes in which a user's model is counted, as one with random branches gives different counts."""
ALONE = 64
"""Samples whose shapes are compared."""
MEASURED = 2
"""Steps of a rank whose norm is recorded first; bytes are measured in the last of them."""
COUNTERS = 32
"""Most bytes per parameter that an optimizer's counters take."""
StepBytes = dict[str, dict[tuple[int, int], tuple[int, ...]]]
"""Figure -> (rank, number of a step) -> the byte counts that the step may have had."""


def step_bytes(before: Mapping[Name, Tensor], step: Done, ranks: Sequence[tuple[int, int]]) -> StepBytes:
    """Return the bytes of a repeated step or row of steps. `ranks`: (rank, number of its first step)."""
    state = [tensor for name, tensor in before.items() if name.kind == OPTIMIZER]
    whole = sum(tensor.nbytes for tensor in state)
    # Python numbers in the state are kept as float64 scalars.
    numbers = sum(tensor.nbytes for tensor in state if not tensor.dim() and tensor.dtype == torch.float64)
    gradients: dict[tuple[int, int], tuple[int, ...]] = {
        (rank, at + more): sizes for rank, at in ranks for more, sizes in enumerate(step.gradient_bytes)
    }
    known = ranks if step.gradient_bytes else ()  # else gradients are sparse
    return {"gradient_bytes": gradients, "optimizer_bytes": dict.fromkeys(known, (whole, whole - numbers))}


def costs(order: AuditOrder, bench: Bench, steps: Sequence[StepBytes]) -> Iterator[AuditItem]:
    """Compare the recorded costs of each rank; for sharded models those of the whole model. `steps`: bytes of the
    repeated steps."""
    wanted: dict[str, float | None] = {"tokens": _tokens(bench)}
    if order.whole:
        wanted["parameter_bytes"] = sum(parameter.nbytes for parameter in bench.parameters.values())
    if any(work.flop_per_sample is not None for work in order.works):
        # A user's model may skip layers at random, or work by what is in a batch: ranks begin with one of the first.
        passes = [_pass(bench, seed) for seed in range(1 if order.model else max(TRIES, len(order.works)))]
        counts = {flop for flop, _ in passes}
        wanted["flop_per_sample"] = counts.pop() if len(counts) == 1 else None
        here = order.coarse == (bench.device.type == "cuda")  # other kernels keep other tensors
        wanted["activation_bytes"] = passes[0][1] if here and _plain(order) else None
    apart = list(_apart(order, wanted))
    if apart and not order.model:
        unlike = _differ(bench)
        left_out = [*["tokens"] * unlike, *["flop_per_sample"] * (unlike or _shared(bench))]
        apart = list(_apart(order, {**wanted, **dict.fromkeys(left_out)}))
    lines = [*apart, *(_of_steps(order, bench, steps) if order.whole else _in_parts(order, bench))]
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
            # A rank that returned at the end did no step.
            if value is None or counted is None or not work.norms:
                continue
            if not isclose(counted, value, rel_tol=NEAR.get(name, 0.0)):
                yield rank, f"{name} of rank {rank} is {counted:,}, the model gives {value:,}"


def _of_steps(order: AuditOrder, bench: Bench, steps: Sequence[StepBytes]) -> Iterator[tuple[int | None, str]]:
    """Compare the bytes of gradients and optimizer state. A user's model may have other bytes in each step, so it is
    compared with the same step; bundled models have the same bytes in all."""
    for rank, work in enumerate(order.works):
        measured = [number for number, _ in work.norms[:MEASURED]]
        alike = {"gradient_bytes": bench.gradient_bytes, "optimizer_bytes": bench.optimizer_bytes}
        for name, size in alike.items() if measured else ():
            counted, wanted = getattr(work, name), tuple[int, ...](() if size is None or not order.model else (size,))
            for each in steps if not order.model and order.planned and not order.resumed else ():
                wanted = wanted or each[name].get((rank, measured[-1]), ())
            # In a run of fewer steps the optimizer has no state yet when it is measured; so where steps are skipped.
            if name == "optimizer_bytes" and order.step.precision == "fp16" and wanted[:1] == (0,):
                continue
            if wanted and counted not in wanted and (name == "gradient_bytes" or len(measured) == MEASURED):
                yield rank, f"{name} of rank {rank} is {counted:,}, the model gives {wanted[0]:,}"


def _in_parts(order: AuditOrder, bench: Bench) -> Iterator[tuple[int | None, str]]:
    """Compare the bytes of all ranks together with those of the whole model, if ranks hold shards; only for bundled
    models."""
    works, count = order.works, len(order.works)
    if not order.model or not order.planned or count < order.world_size or any(len(w.norms) < MEASURED for w in works):
        return
    # Each owner of a part of a parameter has the counters.
    room = {"gradient_bytes": 0, "optimizer_bytes": COUNTERS * len(bench.parameters) * (count - 1)}
    for name, more in room.items():
        size, sizes = getattr(bench, name), [getattr(work, name) for work in works]
        total = None if size is None or None in sizes else sum(sizes)
        if total is not None and not size <= total <= size + more and set(sizes) != {size}:
            yield None, f"{name} of all ranks, each with a part, add up to {total:,}, the model gives {size:,}"


def _size(bench: Bench) -> int:
    """Return the samples of a batch of one rank."""
    return min(bench.rules.batch_size, bench.rules.samples)


def _first(bench: Bench, number: int = 0) -> Any:
    """Return one of the first batches; after the last whole one comes the first again."""
    size = _size(bench)
    start = number % max(bench.rules.samples // max(size, 1), 1) * size
    return bench.batch(start, start + size)


def _differ(bench: Bench) -> bool:
    """Return whether samples have different shapes, as texts that are padded to the longest of a batch."""
    from torch.utils._pytree import tree_leaves

    shapes = set()
    for place in range(min(ALONE, bench.rules.samples)):
        try:
            leaves = tree_leaves(bench.batch(place, place + 1))
        except Exception:  # a user's function may take no single sample
            return True
        shapes.add(tuple(leaf.shape for leaf in leaves if isinstance(leaf, Tensor)))
    return len(shapes) > 1


def _shared(bench: Bench) -> bool:
    """Return whether samples of a batch share work, such as a product of weights, so that the operations per sample depend
    on how many there are in the rank's first pass."""
    size = _size(bench)
    try:
        whole, half = (_pass(bench, 0, part) for part in (size, max(size // 2, 1)))
    except Exception:  # a user's function may take no half batch
        return True
    return not isclose(whole[0], half[0], rel_tol=NEAR["flop_per_sample"])


def _tokens(bench: Bench) -> int:
    batch = _first(bench)
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else None
    embedded = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in bench.model.modules())
    text = isinstance(first, Tensor) and first.dim() == 2 and not first.is_floating_point()
    return int(first.shape[1]) if embedded and text and isinstance(first, Tensor) else 0


def _plain(order: AuditOrder) -> bool:
    """Return whether each rank's first pass is that of a bundled model with default settings, on as many samples as
    configured."""
    first = [report for report in order.reports if not report.first]
    plain = order.model and order.version >= OF_PASS and order.whole and order.step == PLAIN and not order.resumed
    return bool(plain) and all(report.samples == (report.last - report.first) * order.batch_size for report in first)


def _has_storage(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _pass(bench: Bench, seed: int, samples: int | None = None) -> tuple[float, int]:
    """Return the operations per sample of a forward and a backward pass, on the batch of the number `seed` (or on the first
    `samples`) with random numbers from it; and the bytes that the forward pass keeps for the backward pass, besides the
    model and the batch."""
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(seed)
    batch = moved(_first(bench, seed) if samples is None else bench.batch(0, samples), bench.device)
    counter = FlopCounterMode(display=False, custom_mapping=_recurrent())
    lasting = chain(bench.model.parameters(), bench.model.buffers(), tree_leaves(batch))
    own = {each.untyped_storage().data_ptr() for each in lasting if _has_storage(each)}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if _has_storage(tensor) and (place := tensor.untyped_storage().data_ptr()) not in own:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    with counter, Scalars(), saved_tensors_hooks(note, lambda tensor: tensor):
        bench.task.loss(bench.model, batch).backward()  # type: ignore[no-untyped-call]
    for parameter in bench.parameters.values():
        parameter.grad = None
    flop = float(counter.get_total_flops()) / (samples or _size(bench))
    return flop, sum(kept.values())


def _recurrent() -> dict[Any, Callable[..., int]]:
    """Return formulas for fused recurrent layers, which FlopCounterMode counts as zero: one token times every matrix,
    twice that for the backward pass. Their arguments are shapes: the inputs, then the matrices, one by one or in a
    list."""

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
