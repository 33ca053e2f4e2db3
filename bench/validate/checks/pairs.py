"""Seeds that promise solo's very steps make them: pairs of equal seeds, which need no statistics.

The shares of a global batch give the same mean gradient as the whole, but for rounding, where no layer looks at the batch
and none draws numbers. Compared is the mean training loss of the first epoch, before training has amplified rounding: at its
end, two such runs may differ by 4 % of their losses.
"""

from __future__ import annotations

from bench.base.figures import plural
from bench.validate.checks.levels import trained
from bench.validate.findings import Case
from bench.validate.global_batch import global_batch, same_step
from bench.validate.losses import first_loss
from bench.validate.verdict import Verdict, verdict

SHARED = ("conv_ae", "logistic", "mlp", "vit")
"""Models without batch statistics and dropout."""
APART = 1e-5
"""Of the loss, at most."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a seed's first epoch is not solo's; None where that is not promised, or no seed is in the baseline."""
    match, cell = case.match, case.cell
    if match is None or cell.is_solo or cell.about.model not in SHARED:
        return None
    kept = match.reference.first_losses
    runs = [m for m in trained(cell) if same_step(m) and global_batch(m) == match.reference.batch_size and not m.faults]
    pairs = [(m.seed, loss, kept[str(m.seed)]) for m in runs if (loss := first_loss(m)) and kept.get(str(m.seed))]
    if not pairs or match.reference.engine != "solo":
        return None
    seed, mine, solo = max(pairs, key=lambda pair: abs(pair[1] / pair[2] - 1))
    apart = abs(mine / solo - 1)
    line = (
        f"first epoch's training loss, {plural(len(pairs), 'pair')} of equal seeds with solo at the same global batch: "
    )
    line += f"at most {apart:.1g} of it apart (limit {APART:g}), seed {seed}: {mine:.7g} here, {solo:.7g} there"
    return verdict("PASS" if apart <= APART else "FAIL", "pairs", cell, line)
