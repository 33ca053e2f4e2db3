"""The final test loss is no worse than solo's at the same global batch, or else than that of the cell's own baseline.

A loss is continuous, while a metric such as accuracy counts samples. So it scatters less.
"""

from __future__ import annotations

from bench.validate.checks.levels import final_loss
from bench.validate.verdicts.findings import Case, Finding


def check(case: Case) -> Finding | None:
    """Return the claim about the seeds' losses; None without a reference that has losses at this global batch."""
    return final_loss("eval_loss", case)
