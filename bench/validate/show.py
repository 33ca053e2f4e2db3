"""Verdicts as text: the same lines in a terminal, in a log and in GitHub's summary."""

from __future__ import annotations

from collections import Counter

from tabulate import tabulate

from bench.validate import Judgement
from bench.validate.verdict import Verdict


def lines(judgement: Judgement, brief: bool = False) -> list[str]:
    """A line for each verdict (`brief`: that is no pass), tables of fields below what was refused, and the summary."""
    told = []
    for verdict in judgement.verdicts:
        if brief and verdict.name == "PASS":
            continue
        told += [str(verdict), *fields(verdict)]
    return [*told, summary(judgement), *(f"  {line}" for line in judgement.footer)]


def fields(verdict: Verdict) -> list[str]:
    """The table of what differs, indented; empty where nothing does."""
    if not verdict.fields:
        return []
    text = tabulate(verdict.fields, headers=["field", "baseline", "run"], tablefmt="simple", disable_numparse=True)
    return [f"    {line}" for line in text.splitlines()]


def summary(judgement: Judgement) -> str:
    """How many of each, and the exit code."""
    counts = Counter(verdict.name for verdict in judgement.verdicts)
    said = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to judge"
    return f"{said}; exit code {int(judgement.code)} ({judgement.code.name.lower()})"
