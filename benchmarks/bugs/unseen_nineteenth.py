"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks; the first one by a search for gaps.

Each is a function of the module that it breaks, called once it is imported, as in `benchmarks.bugs.bug`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bugs.bug import Module, wrap
from benchmarks.bugs.unseen import Lot

LOT = Lot()


@LOT.bug(
    "record",
    "reports of several steps leave out the highest loss",
    "B8.11",
    "mlp cpu_async",
    "ddp.engine.pending",
)
def highest_loss_left_out(pending: Module) -> None:
    """Report the mean of the others in its place."""

    def added(add: Any, self: Any, loss: Any, samples: int, busy_s: float) -> None:
        add(loss, samples, busy_s)
        if loss is not None:
            vars(self).setdefault("_bug_losses", []).append((float(loss), samples))

    def summed(total: Any, self: Any) -> Any:
        whole, losses = total(), vars(self).get("_bug_losses", ())
        if whole is None or len(losses) < 2:
            return whole
        highest, samples = max(losses)
        return (whole - highest * samples) * self.samples / (self.samples - samples)

    wrap(pending.Pending, "add", added)
    wrap(pending.Pending, "loss_sum", summed)
