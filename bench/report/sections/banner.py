"""Verdicts, problems and warnings: how runs compare with the baselines, which runs or folders failed, and what limits
the meaning of the figures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.report.blocks import Block, Heading, Text, Verdicts, nonempty, plain
from bench.report.page import NONE, Page, bullets, listed, more
from bench.results.analysis.faults import notes
from bench.results.schema import FaultRow, Metrics
from bench.validate import Verdict

ROWS = 400
"""Most cells in the table of verdicts; cells that did not pass come first."""
_DIGITS = re.compile(r"\d[\d.,]*")


def section(page: Page) -> list[Block]:
    """Return the verdicts, the problems and the warnings, each under its heading if there are any."""
    return nonempty(_verdicts(page), _problems(page), _warnings(page))


def _problems(page: Page) -> list[Block]:
    lines = [f"not readable: {plain(problem)}" for problem in page.problems]
    for cell in page.cells:
        for run in cell.runs:
            m = run.metrics
            who = plain(f"{m.model} {cell.label}, seed {m.seed}")
            if m.status != "ok":
                lines.append(f"{m.status}: {who}: {plain(m.error or 'no reason recorded')}")
            lines += [f"fault: {who}: {plain(_fault(fault))}" for fault in m.faults]
    return [Heading("Problems"), *bullets(lines, "problem")] if lines else []


def _elsewhere(metrics: Metrics, warning: str) -> bool:
    """Return whether the page reports the same fact in another place: lost ranks are among the problems, and labels
    name scripted faults."""
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
    passed = [check for check in checks if all(v.name == "PASS" for v in page.verdicts if v.check == check)]
    checks = [check for check in checks if check not in passed]
    by_cell = grouped((verdict.cell, verdict) for verdict in page.verdicts)
    ordered = sorted(by_cell.items(), key=lambda item: not any(verdict.exit_code for verdict in item[1]))
    commands = "; *Reproduce* has the commands" if any(verdict.reproduce for verdict in page.verdicts) else ""
    rows = []
    for cell, group in ordered[:ROWS]:
        names = {verdict.check: verdict.name for verdict in group}
        # What did not pass is explained; of a cell that passed, the last check: it is about the result itself.
        why = "; ".join([_reason(verdict) for verdict in group if verdict.exit_code] or [_reason(group[-1])])
        rows.append({"cell": plain(cell), "why": plain(why)} | {check: names.get(check, NONE) for check in checks})
    return nonempty(
        Heading("Verdicts"),
        Text(f"Against the baselines: **{summary}**."),
        Text(f"Every cell passes {listed(passed)}.") if passed else None,
        Text(
            "A row for each cell, what did not pass first, a column for each other check. *PASS*: shown to be no worse "
            "than the baseline by more than its margin. *INCONCLUSIVE*: too few seeds to say; *REFUSED*, *NO_BASELINE*: "
            f"there is nothing comparable. *Why* says more of what did not pass{commands}."
        ),
        Verdicts(tuple(rows), left=len(rows[0])),
        more(len(ordered) - ROWS, "cell", "`bench validate` prints them all"),
    )


def _reason(verdict: Verdict) -> str:
    """Return the check and its reason. Its commands are left out, because the section `commands` prints them."""
    return f"{verdict.check}: {verdict.why}"


def _warnings(page: Page) -> list[Block]:
    """Return the list of warnings. Those that differ only in numbers are merged into one line with the number of their
    runs."""
    alike: dict[str, list[str]] = defaultdict(list)
    for warning in (w for metrics in page.runs for w in metrics.warnings if not _elsewhere(metrics, w)):
        alike[_DIGITS.sub("#", warning)].append(warning)
    purpose = {
        "Slow devices were emulated": sum(bool(metrics.emulated_speeds) for metrics in page.runs),
        "Faults were made on purpose": sum(bool(metrics.scripted_faults) for metrics in page.runs),
    }
    runs = plural(len(page.runs), "run")
    lines = [f"**{what}** in {n} of {runs}: see the labels." for what, n in purpose.items() if n]
    for texts in alike.values():
        others = "" if len(set(texts)) == 1 else ", and alike with other numbers"
        lines.append(f"{plain(texts[0] + others)} ({plural(len(texts), 'run')})")
    return [Heading("Warnings"), *bullets(lines, "warning")] if lines else []
