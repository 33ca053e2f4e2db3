"""The final quality is not inferior to solo's, by more than a margin. One-sided: better never fails.

The margin is the larger of a practical floor and 2.5 standard deviations of the baseline's seeds: a run that is as good as
solo stays inside it but for rare accidents, whatever the workload's noise.
"""

from __future__ import annotations

from bench.cells import Cell, Sample, Workload
from bench.exitcodes import Exit
from bench.reproduce import command
from bench.validate.baseline import Baseline, Entry
from bench.validate.verdict import Verdict

FLOOR = 0.015
"""Smallest margin, unit of the metric: 1.5 points of accuracy."""
DEVIATIONS = 2.5


def check(cell: Cell, baseline: Baseline) -> Verdict | None:
    """PASS or FAIL on the mean over the cell's finished seeds; REFUSED if the workload differs from the baseline's."""
    if not cell.ok:
        return None
    name, entry = cell.name, baseline.entry(cell.workload)
    if entry is None:
        how = f"python -m bench -m model={cell.workload.model} mode=solo recipe={cell.workload.recipe} seed=0,1,2,3,4"
        line = f"none for {cell.workload.title}; write one: {how}, then: python -m bench baseline"
        return Verdict("NO_BASELINE", "quality", name, line, Exit.REFUSED)
    differing = _differences(cell, entry)
    if differing:
        return Verdict("REFUSED", "quality", name, f"not comparable, {'; '.join(differing)}", Exit.REFUSED)
    return _judge(cell, entry, name)


def _judge(cell: Cell, entry: Entry, name: str) -> Verdict:
    run, base, metric = cell.eval, entry.eval, entry.metric
    assert base.mean is not None
    assert base.sd is not None, "a baseline has several seeds"
    if run.mean is None:
        line = f"no {metric} was measured; reproduce: {command(cell.runs)}"
        return Verdict("FAIL", "quality", name, line, Exit.REGRESSION)
    behind = base.mean - run.mean if entry.higher_is_better else run.mean - base.mean
    margin = max(FLOOR, DEVIATIONS * base.sd)
    why = f"{DEVIATIONS:g} sd" if margin > FLOOR else f"the floor, over {DEVIATIONS:g} sd = {DEVIATIONS * base.sd:.4f}"
    word = "equal" if abs(behind) < 5e-5 else f"{'worse' if behind > 0 else 'better'} by {abs(behind):.4f}"
    line = f"{metric} {_shown(run)}, solo {_shown(base)}: {word}, margin {margin:.4f} ({why})"
    if cell.bereft:
        line += f"; without a rank that was lost in {len(cell.bereft)} of {len(cell.ok)}"
    if behind <= margin:
        return Verdict("PASS", "quality", name, line, Exit.OK)
    return Verdict("FAIL", "quality", name, f"{line}; reproduce: {command(cell.runs)}", Exit.REGRESSION)


def _shown(sample: Sample) -> str:
    spread = f" ± {sample.sd:.4f}" if sample.sd is not None else ""
    return f"{sample.mean:.4f}{spread} (n={sample.n})"


def _differences(cell: Cell, entry: Entry) -> list[str]:
    """Fields in which the cell's workload is not the baseline's: `field: baseline | run`."""
    mine = {**cell.workload._asdict(), "metric": cell.about.final.eval_metric}
    theirs = {**entry.workload._asdict(), "metric": entry.metric}
    assert set(Workload._fields) <= set(mine)
    return [
        f"{field}: {theirs[field]} in the baseline | {mine[field]} here"
        for field in mine
        if mine[field] != theirs[field]
    ]
