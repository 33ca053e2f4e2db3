"""Verdicts as text: the same lines in a terminal, a log and GitHub's summary."""

from __future__ import annotations

from collections import Counter

from tabulate import tabulate

from bench.validate import Judgement
from bench.validate.verdicts.verdict import Verdict


def lines(judgement: Judgement, brief: bool = False) -> list[str]:
    """Return a line for each verdict (`brief`: without passes), tables of the differing fields below them, and the
    summary."""
    shown = [verdict for verdict in judgement.verdicts if not (brief and verdict.name == "PASS")]
    rows = [line for verdict in shown for line in (str(verdict), *fields(verdict))]
    return [*rows, summary(judgement), *(f"  {line}" for line in judgement.footer)]


def fields(verdict: Verdict) -> list[str]:
    """Return the indented table of differing fields; [] if there are none."""
    if not verdict.fields:
        return []
    text = tabulate(verdict.fields, headers=["field", "baseline", "run"], tablefmt="simple", disable_numparse=True)
    return [f"    {line}" for line in text.splitlines()]


def summary(judgement: Judgement) -> str:
    """Return the number of verdicts of each kind, and the exit code."""
    names = Counter(verdict.name for verdict in judgement.verdicts)
    counts = ", ".join(f"{count} {name}" for name, count in names.items()) or "nothing to judge"
    return f"{counts}; exit code {int(judgement.code)} ({judgement.code.name.lower()})"
