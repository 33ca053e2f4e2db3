"""Modes that take the same steps as solo have its losses: pairs of runs with equal seeds, compared without statistics.

The ranks' shares of a global batch give the same mean gradient as the whole batch, up to rounding, if no layer looks at
the batch and none draws random numbers. Compared is the mean training loss of the first epoch, before training
amplifies rounding: by the end, two such runs may differ by 4 % of their losses. The partner is a solo run that is
judged at the same time, else the baseline's, which another processor may have rounded otherwise.
"""

from __future__ import annotations

from bench.base.number_format import plural
from bench.results.cells import Cell
from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.baselines.fingerprint import Fingerprint
from bench.validate.baselines.global_batch import global_batch, same_step
from bench.validate.baselines.reference import Reference
from bench.validate.checks.levels import trained
from bench.validate.statistics.losses import first_loss
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.settings.steps import PRECISIONS

SHARED = ("conv_ae", "logistic", "mlp", "vit")
"""Models without batch statistics and without dropout."""
HALF = PRECISIONS[1:]
APART = 1e-5
"""Largest relative difference of the losses on one kind of processor."""
ELSEWHERE = 0.05
"""The same on two kinds: with AVX2 and AVX-512, five seeds of `mlp` differed by up to 0.0054 after 1,348 steps. Also where
single values are rounded coarsely (in bf16, two halves of a batch differed by 0.0007 after 90 steps; convolutions on a GPU
may have mantissas of ten bits), and where the epoch is long: two halves differed by 0.0045 after 938 steps."""
LONG = 500
"""Steps of an epoch from which on rounding may be amplified too much: two halves differed by 1e-8 after 337 steps at a rate
of 0.008, and after 938 steps by 0.0045 at that rate, by 4e-10 at 0.001."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a seed's first epoch differs from solo's; None if the mode does not promise that, or no seed has a
    partner."""
    match, cell = case.match, case.cell
    if match is None or cell.is_solo or cell.about.model not in SHARED or match.reference.engine != "solo":
        return None
    pairs = [
        (m.seed, loss, *partner)
        for m in trained(cell)
        if same_step(m) and global_batch(m) == match.reference.batch_size and not m.faults
        if (loss := first_loss(m)) and (partner := _solo(case, match.reference, m))
    ]
    if not pairs:
        return None
    seed, mine, solo, limit = max(pairs, key=lambda pair: abs(pair[1] / pair[2] - 1) / pair[3])
    apart = abs(mine / solo - 1)
    line = f"training loss of the first epoch, {plural(len(pairs), 'pair')} with solo of equal seed and global batch: "
    why = (
        "" if limit == APART else ", as roundings are coarse, of another kind of processor, or amplified in many steps"
    )
    line += f"relative difference at most {apart:.1g} (limit {limit:g}{why}), seed {seed}: {mine:.7g}, solo {solo:.7g}"
    return verdict("PASS" if apart <= limit else "FAIL", "pairs", cell, line)


def _solo(case: Case, reference: Reference, mine: Metrics) -> tuple[float, float] | None:
    """Return (loss of solo's run with this seed, allowed relative difference); None if there is none."""
    machine, near = Fingerprint.of(mine).machine, ELSEWHERE if _coarse(case.cell) or _long(mine) else APART
    for cell in case.beside:
        for m in trained(cell) if cell.about.config_hash == reference.config_hash else ():
            if m.seed == mine.seed and Fingerprint.of(m).machine == machine and (loss := first_loss(m)):
                return loss, near
    kept = reference.first_losses.get(str(mine.seed))
    alike = reference.environment.machine == machine
    return (kept, near if alike else ELSEWHERE) if kept else None


def _coarse(cell: Cell) -> bool:
    """Return whether single values are rounded more coarsely than in single precision."""
    half = group_of(cell.runs[0].config, "train").get("precision") in HALF
    return half or any(device.startswith("cuda") for device in cell.about.devices)


def _long(m: Metrics) -> bool:
    """Return whether an epoch has so many steps that training has amplified rounding by its end."""
    return m.samples > LONG * m.epochs_planned * (global_batch(m) or m.batch_size)
