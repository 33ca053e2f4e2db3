"""What a reader must know first: what went wrong, the verdicts, and per workload the answer in a sentence or two."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from bench.analysis.faults import notes
from bench.cells import Workload
from bench.report.compare import Rival, gap, rivals
from bench.report.page import NONE, Page, listed, number, plural, table
from bench.schema import Fault, Metrics
from bench.validate import Verdict

_DIGITS = re.compile(r"\d[\d.,]*")


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
            lines += [f"- fault: {m.model} {cell.label}, seed {m.seed}: {_fault(fault)}" for fault in m.faults]
    return "\n".join(["## Problems\n", *lines]) if lines else ""


def _told(metrics: Metrics, warning: str) -> bool:
    """Whether the page says so elsewhere: losses among the problems, scripts in the labels."""
    return warning in notes(metrics.faults) or bool(metrics.scripted_faults and warning.startswith("faults on purpose"))


def _fault(fault: Fault) -> str:
    who = "" if fault.rank is None else f"rank {fault.rank}, "
    return f"{who}{fault.text}" + (f"; {fault.action}" if fault.action else "")


def _verdicts(page: Page) -> str:
    if not page.verdicts:
        return ""
    counts = Counter(verdict.name for verdict in page.verdicts)
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    checks = list(dict.fromkeys(verdict.check for verdict in page.verdicts))
    by_cell: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in page.verdicts:
        by_cell[verdict.cell].append(verdict)
    rows = []
    for cell, group in by_cell.items():
        names = {verdict.check: verdict.name for verdict in group}
        # What did not pass is explained; of a cell that passed, the last check: it is about the result itself.
        lines = [verdict.told for verdict in group if verdict.exit_code] or [group[-1].line]
        rows.append({"cell": cell, **{check: names.get(check, NONE) for check in checks}, "why": "; ".join(lines)})
    return f"## Verdict against the baseline: {summary}\n\n{table(rows, left=len(rows[0]))}"


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
    """Warnings of the runs, each once whatever the numbers in it, with the number of runs that carry it."""
    runs = [run.metrics for cell in page.cells for run in cell.runs]
    alike: dict[str, list[str]] = defaultdict(list)
    for warning in (warning for metrics in runs for warning in metrics.warnings if not _told(metrics, warning)):
        alike[_DIGITS.sub("#", warning)].append(warning)
    lines = [f"- {_spoken(texts)} ({plural(len(texts), 'run')})" for texts in alike.values()]
    scripted = sum(bool(metrics.scripted_faults) for metrics in runs)
    if scripted:
        lines.insert(
            0, f"- **Faults were made on purpose** in {scripted} of {plural(len(runs), 'run')}: see the labels."
        )
    emulated = sum(bool(metrics.emulated_speeds) for metrics in runs)
    if emulated:
        lines.insert(
            0, f"- **Slow devices were emulated** in {emulated} of {plural(len(runs), 'run')}: see the labels."
        )
    return "\n".join(["**Read this with the numbers:**\n", *lines]) if lines else ""


def _spoken(texts: list[str]) -> str:
    """The warning itself; where its numbers differ between runs, the first with a remark."""
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]}, and alike with other numbers"
