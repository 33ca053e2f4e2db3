"""The ranks' slices against the whole batch at once: what somebody with one device would train, and why it differs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bench.prove.entrants import distance, entrant
from bench.prove.oracle import OracleCourse, replay, whole_batches
from bench.prove.tasks import Make, least, plain


@dataclass(frozen=True)
class WholeBatch:
    """How far the oracle is from the whole batch on one device."""

    ranks: int
    gradients: float
    parameters: float
    loss: float
    why: str


def whole(make: Make, size: int, steps: int, batch: int, seed: int = 5) -> WholeBatch:
    """Hold the ranks' slices against the whole batch at once, as one device trains it: the same training but for rounding,
    unless the model looks at its batch as a whole, or draws random numbers."""
    course = OracleCourse(plain(make), size, batch, steps, seed=seed, least=least(make))
    rule = entrant("nccl").rule
    gradients = parameters = loss = 0.0
    for ours, theirs in zip(replay(course, rule), whole_batches(course), strict=True):
        pairs = zip(ours.gradients, theirs.gradients, strict=True)
        gaps = [float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None and a.numel()]
        gradients, loss = max([gradients, *gaps]), max(loss, abs(ours.loss - theirs.loss))
        parameters = max(parameters, distance(ours.state, theirs.state))
    return WholeBatch(size, gradients, parameters, loss, _reason(make))


def _reason(make: Make) -> str:
    """Return why slices and the whole batch differ."""
    task = make()
    model = task.model()
    if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules()):
        return "batch norm: each rank has the statistics of its own slice"
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in model.modules()):
        return "dropout: each rank draws its own random numbers"
    return "rounding: sums in another order"
