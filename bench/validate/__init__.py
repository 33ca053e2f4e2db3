"""The verdict on runs against the baselines. Reads run folders only; imports no torch.

A cell is judged by every check in `bench.validate.checks`, one file each; `bench.validate.decision` decides what can only be
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
from bench.base.number_format import plural
from bench.results.cells import Cell, cells
from bench.results.rerun_command import command
from bench.results.runfolder import Run, find_runs
from bench.validate import expected, next_runs
from bench.validate.baseline_history import unrooted
from bench.validate.checks import CHECKS, OPTIONAL, Check
from bench.validate.checks.speed import elsewhere
from bench.validate.consistency import legible, sound
from bench.validate.decision import settle
from bench.validate.findings import Case, Finding
from bench.validate.fingerprint import FieldDifference, beyond
from bench.validate.library import Library, load
from bench.validate.reference import Reference
from bench.validate.verdict import Verdict, remark
from ddp import registries
from ddp.suggest import unknown

__all__ = ["Judgement", "Terms", "Tree", "Verdict", "judge", "judge_cells", "judge_trees"]


@dataclass(frozen=True)
class Terms:
    """Options of a validation: which checks run, and what is accepted."""

    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    optional: tuple[str, ...] = ()
    """Checks beyond the usual ones."""
    only: tuple[str, ...] = ()
    """If any: of the usual checks only these, and `ALWAYS`: what failed or diverged is judged by nothing else."""
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
        return Exit(gravest(verdict.exit_code for verdict in self.verdicts)) if self.verdicts else Exit.REFUSED

    def __str__(self) -> str:
        """Return a line for each verdict, as `bench validate` prints them."""
        return "\n".join([*map(str, self.verdicts), *self.footer])


ALWAYS = ("status", "diverged")
"""Checks that no choice leaves out."""

Tree = tuple[list[Run], list[str]]
"""What `find_runs` gives: the runs of a tree, and what could not be read."""


def judge(paths: Sequence[Path], baselines: Path, terms: Terms | None = None) -> Judgement:
    """Judge the runs in `paths` (run folders or trees); a folder or baseline that cannot be read is REFUSED.

    Raises ValueError if a path is no folder, or an optional check is not known.
    """
    return judge_trees({path: find_runs(path) for path in paths}, baselines, terms)


def judge_trees(trees: Mapping[Path, Tree], baselines: Path, terms: Terms | None = None) -> Judgement:
    """Judge trees that were read already."""
    runs: dict[Path, Run] = {}
    unreadable: dict[str, tuple[str, str]] = {}
    for path, (tree, problems) in trees.items():  # one may lie in another: what is met twice is one
        for run in tree:
            runs.setdefault(run.path.resolve(), run)
        for text in problems:
            unreadable.setdefault(text, (path.name, text))
    return judge_cells(cells(list(runs.values())), list(unreadable.values()), baselines, terms)


def judge_cells(
    grouped: Sequence[Cell], unreadable: Sequence[tuple[str, str]], baselines: Path, terms: Terms | None = None
) -> Judgement:
    """Judge cells that were read already; `unreadable`: name of a tree, and what could not be read in it."""
    terms = terms or Terms()
    _check_names(terms)
    registries.sound("check", CHECKS)
    problems = [remark("REFUSED", "readable", name, text) for name, text in unreadable]
    library = load(baselines)
    problems += [remark("REFUSED", "baseline", "baselines", text) for text in library.broken]
    usual = [check for name, check in CHECKS.items() if not terms.only or name in (*terms.only, *ALWAYS)]
    checks = [*usual, *(OPTIONAL[name] for name in terms.optional)]
    findings: list[Finding] = []
    problems += _unrooted(grouped, library)
    solo = tuple(cell for cell in grouped if cell.is_solo)
    for cell in grouped:
        kept, broken = sound(cell.runs, legible)
        problems += [remark("REFUSED", "readable", run.path.name, text) for run, text in broken]
        if kept:
            judged = partial(_judged, library=library, checks=checks, terms=terms, beside=solo)
            findings += _findings(replace(cell, runs=tuple(kept)), judged)
    settled = settle(findings, terms.accept_improvement)
    known = expected.load(baselines if baselines.is_dir() else baselines.parent)
    footer = [*settled.footer, *_unsealed(grouped), *_differing(terms, grouped, library)]
    seeds = {cell.name: ",".join(str(run.metrics.seed) for run in cell.runs) for cell in grouped}
    about = {cell.name: {"hash": cell.about.config_hash, "seeds": seeds[cell.name]} for cell in grouped}
    verdicts = expected.apply(settled.verdicts, known, terms.today)
    if terms.allow_inconclusive:
        verdicts, lines = _allowed(verdicts)
        footer += lines
    return Judgement([*problems, *verdicts], footer, about)


def _unrooted(grouped: Sequence[Cell], library: Library) -> list[Verdict]:
    """Refuse baselines in use that their history does not know."""
    used: dict[str, Reference] = {}
    for cell in grouped:
        with suppress(Exception):  # it is refused by name
            if cell.ok and (match := library.match(cell)) is not None:
                used[match.reference.config_hash] = match.reference
    lines = [unrooted(library.places[key], reference) for key, reference in used.items()]
    return [remark("REFUSED", "baseline", "baselines", line) for line in lines if line]


def _differences(cell: Cell, library: Library) -> list[FieldDifference]:
    """Return every field in which a cell and its reference differ, whatever is judged; none where no check can read it."""
    with suppress(Exception):  # it is refused by name
        if cell.ok and (match := library.match(cell)) is not None:
            return [*match.differing, *elsewhere(match.reference, cell.ok)]
    return []


def _differing(terms: Terms, grouped: Sequence[Cell], library: Library) -> list[str]:
    """Return lines on fields that were allowed to differ; in a name that is none, a typo perhaps, nothing differs."""
    if not terms.allowed:
        return []
    fields = [field for cell in grouped for field in _differences(cell, library)]
    idle = [name for name in terms.allowed if beyond(fields, [name]) == fields]
    lines = [f"allowed to differ: {', '.join(terms.allowed)}"]
    return lines + ([f"though nothing differs in: {', '.join(idle)}"] if idle else [])


def _unsealed(grouped: Sequence[Cell]) -> list[str]:
    """Return a line on finished runs whose results nothing proves."""
    finished = [m for cell in grouped for m in cell.ok]
    if not (count := sum(m.record is None for m in finished)):
        return []
    return [
        f"unsealed: {count} of {plural(len(finished), 'run')}, of an earlier version: their results are taken at their word"
    ]


def _judged(
    cell: Cell, library: Library, checks: Sequence[Check], terms: Terms, beside: tuple[Cell, ...]
) -> list[Finding]:
    """Return what all checks find in a cell."""
    case, obstacle = _case(cell, library, terms)
    case = replace(case, beside=beside)
    return [*(result for check in checks if (result := check(case)) is not None), *obstacle]


def _findings(cell: Cell, judged: Callable[[Cell], list[Finding]]) -> list[Finding]:
    """Judge a cell, whatever lies in its folders: what no check is prepared for refuses this cell, and no other."""
    try:
        return judged(cell)
    except Exception as error:
        culprits = []
        for run in cell.runs:
            try:
                judged(replace(cell, runs=(run,)))
            except Exception:
                culprits.append(run)
        where = ", ".join(str(run.path) for run in culprits or cell.runs)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [remark("REFUSED", "readable", cell.name, f"{where}: what lies there does not fit together: {reason}")]


def _allowed(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[str]]:
    """Return the verdicts with too little data as such that stop nobody; not where runs were compared though they differ,
    nor where seeds diverged, of which there is data enough."""
    allowed = [verdict.name == "INCONCLUSIVE" and verdict.check not in ("baseline", "diverged") for verdict in verdicts]
    eased = [replace(v, exit_code=Exit.OK) if ok else v for v, ok in zip(verdicts, allowed, strict=True)]
    return eased, [f"allowed: {sum(allowed)} INCONCLUSIVE, which count as exit code 0"] if any(allowed) else []


def _check_names(terms: Terms) -> None:
    for kind, names, known in (("optional check", terms.optional, OPTIONAL), ("check", terms.only, CHECKS)):
        for name in names:
            if name not in known:
                raise ValueError(unknown(kind, name, known))


def _case(cell: Cell, library: Library, terms: Terms) -> tuple[Case, list[Verdict]]:
    """Return the cell with its reference, if they may be compared; otherwise why not. A cell without a result wants none."""
    if not cell.ok or cell.ok[0].source == "predicted":  # what was played in virtual time has learnt nothing
        return Case(cell, None), []
    match = library.match(cell)
    if match is None:
        line = f"none for {cell.workload.title}; make one: {next_runs.baseline(cell)}"
        lacking = remark("NO_BASELINE", "baseline", cell.name, line)
        return Case(cell, None), [replace(lacking, more=next_runs.reference(cell))]
    every, name = tuple(match.differing), match.reference.name
    match = replace(match, differing=beyond(match.differing, terms.allowed))
    if differing := tuple(match.differing):
        line = f"not comparable with {name}: {_fields(differing)}; make one here: {next_runs.baseline(cell)}"
        refused = remark("REFUSED", "baseline", cell.name, line, differing)
        return Case(cell, None, terms.allowed), [
            replace(refused, reproduce=command(cell.runs), more=next_runs.reference(cell))
        ]
    if match.reference.expired(terms.today) and not terms.allow_expired:
        line = f"the baseline of {name} expired after {match.reference.expires}: make it anew, or --allow-expired"
        return Case(cell, None), [remark("EXPIRED", "baseline", cell.name, line)]
    case = Case(cell, match, terms.allowed)
    if every:  # declared to be allowed: it is compared, but no gate opens for it
        line = f"compared with {name} though they differ, as was allowed: {_fields(every)}; proves nothing"
        return case, [remark("INCONCLUSIVE", "baseline", cell.name, line, every)]
    return case, []


def _fields(differing: Sequence[FieldDifference]) -> str:
    return "; ".join(f"{field}: {baseline} in the baseline | {run} here" for field, baseline, run in differing)
