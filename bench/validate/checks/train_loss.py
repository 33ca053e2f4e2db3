"""The final training loss is no worse than solo's at the same global batch, or else than that of the cell's own
baseline.

It shows defects that a test set hides: samples that were not trained, labels that were wrong.
"""

from __future__ import annotations

from bench.validate.checks.levels import final_loss
from bench.validate.verdicts.findings import Case, Finding


def check(case: Case) -> Finding | None:
    """Return the claim about the seeds' losses; None without a reference that has losses at this global batch."""
    return final_loss("train_loss", case)
