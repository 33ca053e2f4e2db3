"""The verdict on runs against the baselines. Reads run folders only; imports no torch.

A cell is judged by every check in `bench.validate.checks`, one file each; `bench.validate.family` decides what can only be
decided over all cells; references are `bench.validate.reference`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path

from bench.cells import Cell, cells
from bench.exitcodes import Exit, gravest
from bench.reproduce import command
from bench.runfolder import find_runs
from bench.validate import expected
from bench.validate.checks import CHECKS, OPTIONAL
from bench.validate.family import settle
from bench.validate.findings import Case, Finding
from bench.validate.fingerprint import Difference, beyond
from bench.validate.library import Library, load
from bench.validate.records import records
from bench.validate.verdict import EXITS, Verdict
from ddp.suggest import unknown

__all__ = ["Judgement", "Terms", "Verdict", "exit_code", "judge", "judge_cells", "validate"]


@dataclass(frozen=True)
class Terms:
    """What was said beside the runs."""

    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    optional: tuple[str, ...] = ()
    """Checks beyond the usual ones."""
    accept_improvement: bool = False
    allow_expired: bool = False
    allowed: tuple[str, ...] = ()
    """Fields in which runs may differ from their baseline."""


@dataclass(frozen=True)
class Judgement:
    """The verdicts by cell, and what holds for all of them."""

    verdicts: list[Verdict]
    footer: list[str]
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name of a cell -> its hash and seeds."""

    @property
    def code(self) -> Exit:
        """The gravest of all: a failed run over a regression over a refusal. Nothing judged is a refusal."""
        return Exit(exit_code(self.verdicts))


def judge(paths: Sequence[Path], baselines: Path, terms: Terms | None = None) -> Judgement:
    """The verdicts on the runs in `paths` (run folders or trees); a folder or baseline that cannot be read is REFUSED.

    Raises ValueError if a path is no folder, or an optional check is not known.
    """
    terms = terms or Terms()
    _known(terms)
    found = [find_runs(path) for path in paths]
    unread = [(path.name, text) for path, (_, said) in zip(paths, found, strict=True) for text in said]
    return judge_cells(cells([run for runs, _ in found for run in runs]), unread, baselines, terms)


def judge_cells(
    grouped: Sequence[Cell], unread: Sequence[tuple[str, str]], baselines: Path, terms: Terms | None = None
) -> Judgement:
    """The same of cells that were read already; `unread`: name of a tree, and what could not be read in it."""
    terms = terms or Terms()
    _known(terms)
    problems = [_refused("readable", name, text) for name, text in unread]
    library = load(baselines)
    problems += [_refused("baseline", "baselines", text) for text in library.broken]
    checks = [*CHECKS.values(), *(OPTIONAL[name] for name in terms.optional)]
    findings: list[Finding] = []
    for cell in grouped:
        cell, broken = _legible(cell)
        problems += broken
        if not cell.runs:
            continue
        case, said = _case(cell, library, terms)
        findings += [result for check in checks if (result := check(case)) is not None]
        findings += said
    settled = settle(findings, terms.accept_improvement)
    known = expected.load(baselines if baselines.is_dir() else baselines.parent)
    footer = [*settled.footer, *([f"allowed to differ: {', '.join(terms.allowed)}"] if terms.allowed else [])]
    about = {cell.name: {"hash": cell.about.config_hash, "seeds": _seeds(cell)} for cell in grouped}
    return Judgement([*problems, *expected.apply(settled.verdicts, known, terms.today)], footer, about)


def _known(terms: Terms) -> None:
    for name in terms.optional:
        if name not in OPTIONAL:
            raise ValueError(unknown("optional check", name, OPTIONAL))


def validate(path: Path, baselines: Path) -> list[Verdict]:
    """The verdicts of `judge` on one path, on the usual terms."""
    return judge([path], baselines).verdicts


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """The gravest of all: a failed run over a regression over a refusal over a pass. Nothing judged is a refusal."""
    return int(gravest(verdict.exit_code for verdict in verdicts)) if verdicts else int(Exit.REFUSED)


def _seeds(cell: Cell) -> str:
    return ",".join(str(run.metrics.seed) for run in cell.runs)


def _refused(check: str, cell: str, line: str) -> Verdict:
    return Verdict("REFUSED", check, cell, line, EXITS["REFUSED"])


def _case(cell: Cell, library: Library, terms: Terms) -> tuple[Case, list[Verdict]]:
    """The cell with its reference, if the two may be compared; otherwise why not. A cell without a result wants none."""
    if not cell.ok:
        return Case(cell, None), []
    match = library.match(cell)
    if match is None:
        return Case(cell, None), [_none(cell)]
    every = match.differing
    match = replace(match, differing=beyond(every, terms.allowed))
    if match.differing:
        line = f"not comparable with {match.reference.name}: {_fields(match.differing)}"
        told = Verdict(
            "REFUSED", "baseline", cell.name, line, EXITS["REFUSED"], command(cell.runs), tuple(match.differing)
        )
        return Case(cell, None), [told]
    if match.reference.expired(terms.today) and not terms.allow_expired:
        name, until = match.reference.name, match.reference.expires
        line = f"the baseline of {name} expired after {until}: make it anew, or --allow-expired"
        return Case(cell, None), [Verdict("EXPIRED", "baseline", cell.name, line, EXITS["EXPIRED"])]
    if every:  # said to be allowed: it is compared, but no gate opens for it
        line = (
            f"compared with {match.reference.name} though they differ, as was allowed: {_fields(every)}; proves nothing"
        )
        told = Verdict("INCONCLUSIVE", "baseline", cell.name, line, EXITS["INCONCLUSIVE"], fields=tuple(every))
        return Case(cell, match), [told]
    return Case(cell, match), []


def _legible(cell: Cell) -> tuple[Cell, list[Verdict]]:
    """The cell without runs whose records cannot be read, and what is wrong with these."""
    kept, broken = [], []
    for run in cell.runs:
        try:
            records(run)
            kept.append(run)
        except ValueError as error:
            broken.append(_refused("readable", run.path.name, str(error)))
    return replace(cell, runs=tuple(kept)), broken


def _fields(found: Sequence[Difference]) -> str:
    return "; ".join(f"{one.field}: {one.baseline} in the baseline | {one.run} here" for one in found)


def _none(cell: Cell) -> Verdict:
    seeds = ",".join(map(str, range(20)))
    how = f"python -m bench -m model={cell.workload.model} mode=solo recipe={cell.workload.recipe} seed={seeds}"
    line = f"none for {cell.workload.title}; make one: {how}, then: python -m bench baseline propose, and accept"
    return Verdict("NO_BASELINE", "baseline", cell.name, line, EXITS["NO_BASELINE"])
