"""What a reader must know first: what went wrong, the verdicts, and per workload the answer in a sentence or two."""

from __future__ import annotations

from collections import Counter

from bench.cells import Workload
from bench.report.compare import Rival, gap, rivals
from bench.report.page import Page, listed, number, plural, table


def section(page: Page) -> str:
    """Title, problems, verdicts, answers, warnings."""
    runs = [run for cell in page.cells for run in cell.runs]
    counts = Counter(run.metrics.status for run in runs)
    tally = ", ".join(f"**{count} {status}**" for status, count in sorted(counts.items(), key=lambda c: c[0] != "ok"))
    head = f"{plural(len(runs), 'run')} in {plural(len(page.cells), 'cell')}: {tally or 'none readable'}."
    if page.problems:
        head += f" **{plural(len(page.problems), 'folder')} could not be read.**"
    parts = ["# Benchmark report", head, _problems(page), _verdicts(page)]
    parts += [_answer(page, workload, rivals(found)) for workload, found in page.workloads.items()]
    return "\n\n".join(part for part in [*parts, _warnings(page)] if part)


def _problems(page: Page) -> str:
    lines = [f"- not readable: `{problem}`" for problem in page.problems]
    for cell in page.cells:
        for run in cell.runs:
            m = run.metrics
            if m.status != "ok":
                lines.append(f"- {m.status}: {m.model} {cell.label}, seed {m.seed}: {m.error or 'no reason recorded'}")
            lines += [f"- fault: {m.model} {cell.label}, seed {m.seed}, rank {f.rank}: {f.text}" for f in m.faults]
    return "\n".join(["## Problems\n", *lines]) if lines else ""


def _verdicts(page: Page) -> str:
    if not page.verdicts:
        return ""
    counts = Counter(verdict.name for verdict in page.verdicts)
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    ordered = sorted(page.verdicts, key=lambda verdict: -verdict.exit_code)
    rows = [{"verdict": v.name, "check": v.check, "cell": v.cell, "why": v.line} for v in ordered]
    return f"## Verdict against the baseline: {summary}\n\n{table(rows, left=4)}"


def _answer(page: Page, workload: Workload, found: list[Rival]) -> str:
    """Does it converge like solo, and is it faster? In numbers of this tree."""
    solo = found[0].solo
    name = f"**{page.title(workload)}.**"
    metric = found[0].cell.about.final.eval_metric
    if solo is None or solo.eval.mean is None:
        ends = [f"{r.cell.label} at {metric} {r.cell.eval.mean:.4f}" for r in found if r.cell.eval.mean is not None]
        return f"{name} No finished solo run to compare with." + (f" Final: {listed(ends)}." if ends else "")
    text = (
        f"{name} Solo ends at {metric} {solo.eval.mean:.4f} (n={solo.eval.n}) with {number(solo.speed.mean)} samples/s."
    )
    others = [rival for rival in found if rival.cell is not solo]
    measured = [rival for rival in others if rival.behind is not None]
    if not measured:
        return text
    worst = max(measured, key=lambda rival: rival.behind or 0.0)
    text += f" The lowest of {plural(len(measured), 'other cell')} against it is {worst.cell.label}: "
    text += f"{gap(worst.behind, metric)} (n={worst.cell.eval.n})."
    fast = max(measured, key=lambda rival: rival.speedup or 0.0)
    if fast.speedup is not None:
        text += (
            f" The fastest is {fast.cell.label}: {fast.speedup:.2f} times solo's samples/s, {gap(fast.behind, metric)}."
        )
    return text


def _warnings(page: Page) -> str:
    """Warnings of the runs, each once, with the number of runs that carry it."""
    runs = [run.metrics for cell in page.cells for run in cell.runs]
    counts = Counter(warning for metrics in runs for warning in metrics.warnings)
    lines = [f"- {text} ({plural(count, 'run')})" for text, count in counts.items()]
    emulated = sum(bool(metrics.emulated_speeds) for metrics in runs)
    if emulated:
        lines.insert(
            0, f"- **Slow devices were emulated** in {emulated} of {plural(len(runs), 'run')}: see the labels."
        )
    return "\n".join(["**Read this with the numbers:**\n", *lines]) if lines else ""
