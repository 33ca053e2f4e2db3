"""The verdict on runs against the baselines. Reads run folders only; imports no torch.

A cell is judged by every check in `bench.validate.checks`, one file each; `bench.validate.family` decides what can only be
decided over all cells; references are `bench.validate.reference`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from bench.base.exitcodes import Exit, gravest
from bench.results.cells import Cell, cells
from bench.results.rerun_command import command
from bench.results.runfolder import Run, find_runs
from bench.validate import expected, further
from bench.validate.checks import CHECKS, OPTIONAL, Check
from bench.validate.checks.speed import elsewhere
from bench.validate.family import settle
from bench.validate.findings import Case, Finding
from bench.validate.fingerprint import FieldDifference, beyond
from bench.validate.legible import legible
from bench.validate.library import Library, load
from bench.validate.verdict import EXITS, Verdict
from ddp.suggest import unknown

__all__ = ["Judgement", "Terms", "Verdict", "exit_code", "judge", "judge_cells", "judge_trees", "validate"]


@dataclass(frozen=True)
class Terms:
    """What was said beside the runs."""

    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    optional: tuple[str, ...] = ()
    """Checks beyond the usual ones."""
    only: tuple[str, ...] = ()
    """If any: of the usual checks only these, and `status`: what failed is judged by nothing else."""
    accept_improvement: bool = False
    allow_expired: bool = False
    allow_inconclusive: bool = False
    """Too few seeds for a verdict is no reason to stop; anything that a person must look at still is."""
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


Tree = tuple[list[Run], list[str]]
"""What `find_runs` gives: the runs of a tree, and what could not be read."""


def judge(paths: Sequence[Path], baselines: Path, terms: Terms | None = None) -> Judgement:
    """The verdicts on the runs in `paths` (run folders or trees); a folder or baseline that cannot be read is REFUSED.

    Raises ValueError if a path is no folder, or an optional check is not known.
    """
    return judge_trees({path: find_runs(path) for path in paths}, baselines, terms)


def judge_trees(trees: Mapping[Path, Tree], baselines: Path, terms: Terms | None = None) -> Judgement:
    """The same of trees that were read already."""
    runs: dict[Path, Run] = {}
    unread: dict[str, tuple[str, str]] = {}
    for path, (found, said) in trees.items():  # one may lie in another: what is met twice is one
        for run in found:
            runs.setdefault(run.path.resolve(), run)
        for text in said:
            unread.setdefault(text, (path.name, text))
    return judge_cells(cells(list(runs.values())), list(unread.values()), baselines, terms)


def judge_cells(
    grouped: Sequence[Cell], unread: Sequence[tuple[str, str]], baselines: Path, terms: Terms | None = None
) -> Judgement:
    """The same of cells that were read already; `unread`: name of a tree, and what could not be read in it."""
    terms = terms or Terms()
    _known(terms)
    problems = [_refused("readable", name, text) for name, text in unread]
    library = load(baselines)
    problems += [_refused("baseline", "baselines", text) for text in library.broken]
    usual = [check for name, check in CHECKS.items() if not terms.only or name in (*terms.only, "status")]
    checks = [*usual, *(OPTIONAL[name] for name in terms.optional)]
    judged = partial(_judged, library=library, checks=checks, terms=terms)
    findings: list[Finding] = []
    for cell in grouped:
        cell, broken = _legible(cell)
        problems += broken
        findings += _findings(cell, judged) if cell.runs else []
    settled = settle(findings, terms.accept_improvement)
    known = expected.load(baselines if baselines.is_dir() else baselines.parent)
    footer = [*settled.footer, *_differing(terms, grouped, library)]
    about = {cell.name: {"hash": cell.about.config_hash, "seeds": _seeds(cell)} for cell in grouped}
    verdicts = expected.apply(settled.verdicts, known, terms.today)
    if terms.allow_inconclusive:
        verdicts, told = _allowed(verdicts)
        footer += told
    return Judgement([*problems, *verdicts], footer, about)


def _differences(cell: Cell, library: Library) -> list[FieldDifference]:
    """Every field in which a cell and its reference differ, whatever is judged of it; none where no check can read it."""
    with suppress(Exception):  # it is refused by name
        if cell.ok and (match := library.match(cell)) is not None:
            return [*match.differing, *elsewhere(match.reference, cell.ok)]
    return []


def _differing(terms: Terms, grouped: Sequence[Cell], library: Library) -> list[str]:
    """Lines on fields that were allowed to differ; a name that is none, a typo perhaps, is one in which nothing does."""
    if not terms.allowed:
        return []
    found = [one for cell in grouped for one in _differences(cell, library)]
    idle = [name for name in terms.allowed if beyond(found, [name]) == found]
    told = [f"allowed to differ: {', '.join(terms.allowed)}"]
    return told + ([f"though nothing differs in: {', '.join(idle)}"] if idle else [])


def _judged(cell: Cell, library: Library, checks: Sequence[Check], terms: Terms) -> list[Finding]:
    """What all checks find in a cell."""
    case, said = _case(cell, library, terms)
    return [*(result for check in checks if (result := check(case)) is not None), *said]


def _findings(cell: Cell, judged: Callable[[Cell], list[Finding]]) -> list[Finding]:
    """The same, whatever lies in the folders: what no check is prepared for refuses this cell, and no other."""
    try:
        return judged(cell)
    except Exception as error:
        alone = [run for run in cell.runs if _fails(judged, replace(cell, runs=(run,)))]
        where = ", ".join(str(run.path) for run in alone or cell.runs)
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return [_refused("readable", cell.name, f"{where}: what lies there does not fit together: {told}")]


def _fails(judged: Callable[[Cell], list[Finding]], cell: Cell) -> bool:
    try:
        judged(cell)
    except Exception:
        return True
    return False


def _allowed(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[str]]:
    """The verdicts with too little data as none that stops anybody; not where runs were compared though they differ."""
    allowed = [one.name == "INCONCLUSIVE" and one.check != "baseline" for one in verdicts]
    eased = [replace(one, exit_code=Exit.OK) if ok else one for one, ok in zip(verdicts, allowed, strict=True)]
    return eased, [f"allowed: {sum(allowed)} INCONCLUSIVE, which count as exit code 0"] if any(allowed) else []


def _known(terms: Terms) -> None:
    for name in terms.optional:
        if name not in OPTIONAL:
            raise ValueError(unknown("optional check", name, OPTIONAL))
    for name in terms.only:
        if name not in CHECKS:
            raise ValueError(unknown("check", name, CHECKS))


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
        return Case(cell, None, terms.allowed), [told]
    if match.reference.expired(terms.today) and not terms.allow_expired:
        name, until = match.reference.name, match.reference.expires
        line = f"the baseline of {name} expired after {until}: make it anew, or --allow-expired"
        return Case(cell, None), [Verdict("EXPIRED", "baseline", cell.name, line, EXITS["EXPIRED"])]
    if every:  # said to be allowed: it is compared, but no gate opens for it
        line = (
            f"compared with {match.reference.name} though they differ, as was allowed: {_fields(every)}; proves nothing"
        )
        told = Verdict("INCONCLUSIVE", "baseline", cell.name, line, EXITS["INCONCLUSIVE"], fields=tuple(every))
        return Case(cell, match, terms.allowed), [told]
    return Case(cell, match, terms.allowed), []


def _legible(cell: Cell) -> tuple[Cell, list[Verdict]]:
    """The cell without runs that cannot be read, and what is wrong with these."""
    kept, broken = [], []
    for run in cell.runs:
        try:
            legible(run)
            kept.append(run)
        except ValueError as error:
            broken.append(_refused("readable", run.path.name, str(error)))
    return replace(cell, runs=tuple(kept)), broken


def _fields(found: Sequence[FieldDifference]) -> str:
    return "; ".join(f"{one.field}: {one.baseline} in the baseline | {one.run} here" for one in found)


def _none(cell: Cell) -> Verdict:
    line = f"none for {cell.workload.title}; make one: {further.baseline(cell)}"
    return Verdict("NO_BASELINE", "baseline", cell.name, line, EXITS["NO_BASELINE"])
