"""What a reader must know first: the verdicts, what went wrong, and what to keep in mind with the numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from bench.base.figures import plural
from bench.report.blocks import Block, Bullets, Heading, Text, Verdicts, plain, told
from bench.report.page import LINES, NONE, Page, more
from bench.results.analysis.faults import notes
from bench.results.schema import FaultRow, Metrics
from bench.validate import Verdict

ROWS = 400
"""Cells with verdicts that are shown, those that did not pass first."""
_COMMAND = re.compile(r"[:;]? (?:make one: )?python -m bench ")
_DIGITS = re.compile(r"\d[\d.,]*")


def section(page: Page) -> list[Block]:
    """Title, verdicts, problems, warnings."""
    runs = [run for cell in page.cells for run in cell.runs]
    counts = Counter(run.metrics.status for run in runs)
    tally = ", ".join(f"**{count} {status}**" for status, count in sorted(counts.items(), key=lambda c: c[0] != "ok"))
    head = f"{plural(len(runs), 'run')} in {plural(len(page.cells), 'cell')}: {tally or 'none readable'}."
    if page.problems:
        head += f" **{plural(len(page.problems), 'folder')} could not be read.**"
    return told(Heading("Benchmark report", 1), Text(head), _verdicts(page), _problems(page), _warnings(page))


def _problems(page: Page) -> list[Block]:
    lines = [f"not readable: {plain(problem)}" for problem in page.problems]
    for cell in page.cells:
        for run in cell.runs:
            m = run.metrics
            who = plain(f"{m.model} {cell.label}, seed {m.seed}")
            if m.status != "ok":
                lines.append(f"{m.status}: {who}: {plain(m.error or 'no reason recorded')}")
            lines += [f"fault: {who}: {plain(_fault(fault))}" for fault in m.faults]
    shown = Bullets(tuple(lines[:LINES]))
    return [Heading("Problems"), shown, *told(more(len(lines) - LINES, "problem"))] if lines else []


def _told(metrics: Metrics, warning: str) -> bool:
    """Whether the page says so elsewhere: losses among the problems, scripts in the labels."""
    return warning in notes(metrics.faults) or bool(metrics.scripted_faults and warning.startswith("faults on purpose"))


def _fault(fault: FaultRow) -> str:
    who = "" if fault.rank is None else f"rank {fault.rank}, "
    return f"{who}{fault.text}" + (f"; {fault.action}" if fault.action else "")


def _verdicts(page: Page) -> list[Block]:
    if not page.verdicts:
        return []
    counts = Counter(verdict.name for verdict in page.verdicts)
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    checks = list(dict.fromkeys(verdict.check for verdict in page.verdicts))
    by_cell: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in page.verdicts:
        by_cell[verdict.cell].append(verdict)
    ordered = sorted(by_cell.items(), key=lambda item: not any(verdict.exit_code for verdict in item[1]))
    rows = []
    for cell, group in ordered[:ROWS]:
        names = {verdict.check: verdict.name for verdict in group}
        # What did not pass is explained; of a cell that passed, the last check: it is about the result itself.
        why = "; ".join([_reason(verdict) for verdict in group if verdict.exit_code] or [_reason(group[-1])])
        rows.append({"cell": plain(cell), "why": plain(why)} | {check: names.get(check, NONE) for check in checks})
    return told(
        Heading("Verdicts"),
        Text(f"Against the baselines: **{summary}**."),
        Text(
            "A row for each cell, those that did not pass first, a column for each check. *PASS*: shown to be no worse "
            "than the baseline by more than its margin. *INCONCLUSIVE*: too few seeds to say; *REFUSED*, *NO_BASELINE*: "
            "there is nothing comparable. *Why* says more of what did not pass; *Reproduce* has the commands."
        ),
        Verdicts(tuple(rows), left=len(rows[0])),
        more(len(ordered) - ROWS, "cell", "`bench validate` prints them all"),
    )


def _reason(verdict: Verdict) -> str:
    """Without the commands in it: there is a section for them."""
    return f"{verdict.check}: {_COMMAND.split(verdict.line)[0]}"


def _warnings(page: Page) -> list[Block]:
    """Warnings of the runs, each once whatever the numbers in it, with the number of runs that carry it."""
    runs = [run.metrics for cell in page.cells for run in cell.runs]
    alike: dict[str, list[str]] = defaultdict(list)
    for warning in (warning for metrics in runs for warning in metrics.warnings if not _told(metrics, warning)):
        alike[_DIGITS.sub("#", warning)].append(warning)
    lines = [f"{plain(_spoken(texts))} ({plural(len(texts), 'run')})" for texts in alike.values()]
    purpose = {
        "Slow devices were emulated": sum(bool(metrics.emulated_speeds) for metrics in runs),
        "Faults were made on purpose": sum(bool(metrics.scripted_faults) for metrics in runs),
    }
    first = [f"**{what}** in {n} of {plural(len(runs), 'run')}: see the labels." for what, n in purpose.items() if n]
    items = [*first, *lines]
    if not items:
        return []
    rest = more(len(items) - LINES, "warning")
    return [Text("**Read this with the numbers:**"), Bullets(tuple(items[:LINES])), *told(rest)]


def _spoken(texts: list[str]) -> str:
    """The warning itself; where its numbers differ between runs, the first with a remark."""
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]}, and alike with other numbers"
