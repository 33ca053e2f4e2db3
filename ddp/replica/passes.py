"""Own the forward and backward passes of a replica's steps: into which micro-batches a step falls, and what a pass is.

`StepSettings` says how; every engine's step goes through here. Knows neither data nor ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from ddp.core.spans import Batch, micro_batches
from ddp.replica.norms import least_samples
from ddp.replica.task import Job

Marks = list[tuple[Tensor | None, int]]
"""The gradient of each parameter, and its version."""


class StepPasses:
    """The passes of one replica."""

    def __init__(self, job: Job, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self._ranks, self._parameters = job.world_size, parameters
        self._most = job.batch_size // job.step.accumulate
        self._least = least_samples(model)
        self._single = job.step.accumulate == 1

    def cut(self, batch: Batch, together: bool) -> Sequence[Batch]:
        """Return the micro-batches of this rank's part of a step. `together`: all ranks have equally many of them."""
        if self._single:
            return (batch,)
        return micro_batches(batch, self._ranks if together else 1, self._most, self._least)

    def cut_all(self, batches: Iterable[Batch], together: bool) -> Iterable[Batch]:
        """Return the micro-batches of steps that come, in their order."""
        return batches if self._single else (part for batch in batches for part in self.cut(batch, together))

    def marks(self) -> Marks:
        """Return what the gradients are before the loss of one of several micro-batches."""
        gradients = [parameter.grad for parameter in self._parameters]
        return [(gradient, 0 if gradient is None else gradient._version) for gradient in gradients]

    def check(self, before: Marks) -> None:
        """Raise ValueError if the user's loss has touched gradients: those of the step's other micro-batches lie there."""
        for (gradient, version), (own, now) in zip(before, self.marks(), strict=True):
            if own is not gradient or now != version:
                raise ValueError(
                    "the step makes or clears gradients itself, which accumulate would count wrongly: leave backward() "
                    "and zero_grad() to the engine, or leave accumulate out"
                )


def backward(loss: Tensor) -> None:
    """Take the gradient of a loss. Raise ValueError for one whose gradient was taken already."""
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise ValueError(
                "the step called backward() on what its loss is made of: return the loss, and leave backward, the "
                "optimizer's step and zero_grad to the engine"
            ) from error
        raise
