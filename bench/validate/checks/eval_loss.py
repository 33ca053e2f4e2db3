"""The final loss on the test set is no worse: than solo's at the same global batch, else than the cell's own baseline's.

Continuous where a metric counts samples, so it scatters less.
"""

from __future__ import annotations

from bench.validate.checks.levels import final_loss
from bench.validate.findings import Case, Finding


def check(case: Case) -> Finding | None:
    """Return the claim about the seeds' values; None without a reference that has them for such batches."""
    return final_loss("eval_loss", case)
