"""The verdict on runs against the baselines. Reads run folders only; imports no torch.

Every check in `bench.validate.checks` judges each cell. `bench.validate.verdicts.decision` decides what needs all cells
at once. `bench.validate.baselines.reference` has the references.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from bench.base.exitcodes import Exit, gravest
from bench.base.number_format import plural
from bench.base.paths import judged_by
from bench.results.cells import Cell, cells
from bench.results.rerun_command import command
from bench.results.runfolder import Run, find_runs
from bench.validate import expected
from bench.validate.baselines.fingerprint import FieldDifference, beyond
from bench.validate.baselines.folder import Library, load
from bench.validate.baselines.reference import Reference
from bench.validate.checks import CHECKS, OPTIONAL, Check
from bench.validate.checks.speed import elsewhere
from bench.validate.evidence.consistency import SEALED, sound
from bench.validate.evidence.derivation import ANEW, Derivation
from bench.validate.revisions.baseline_history import unrooted
from bench.validate.verdicts import next_runs
from bench.validate.verdicts.decision import settle
from bench.validate.verdicts.findings import Case, Finding
from bench.validate.verdicts.verdict import Verdict, remark
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
    """If not empty: the only usual checks to run, and `ALWAYS`. Those are kept, as nothing else judges runs that failed
    or diverged."""
    accept_improvement: bool = False
    allow_expired: bool = False
    allow_inconclusive: bool = False
    """Verdicts that lack seeds give exit code 0; those that a person must look at do not."""
    allowed: tuple[str, ...] = ()
    """Fields in which runs may differ from their baseline."""


@dataclass(frozen=True)
class Judgement:
    """The verdicts by cell, and what holds for all cells."""

    verdicts: list[Verdict]
    footer: list[str]
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name of a cell -> its hash and seeds."""
    refused: dict[Path, str] = field(default_factory=dict)
    """Folder of a run that no check can rely on -> why."""

    @property
    def code(self) -> Exit:
        """The gravest exit code of all verdicts: a failed run over a regression over a refusal. Without verdicts:
        refused."""
        return Exit(gravest(verdict.exit_code for verdict in self.verdicts)) if self.verdicts else Exit.REFUSED

    def __str__(self) -> str:
        """Return a line for each verdict, as `bench validate` prints them."""
        return "\n".join([*map(str, self.verdicts), *self.footer])


ALWAYS = ("status", "diverged")
"""Checks that run whatever `Terms.only` names."""

Tree = tuple[list[Run], list[str]]
"""Result of `find_runs`: the runs of a tree, and a line for each run that could not be read."""


def judge(paths: Sequence[Path], baselines: Path, terms: Terms | None = None) -> Judgement:
    """Judge the runs in `paths` (run folders or trees); a folder or baseline that cannot be read is REFUSED.

    Raises ValueError if a path is no folder, or an optional check is not known.
    """
    return judge_trees({path: find_runs(path) for path in paths}, baselines, terms)


def judge_trees(trees: Mapping[Path, Tree], baselines: Path, terms: Terms | None = None) -> Judgement:
    """Judge trees that were already read."""
    runs: dict[Path, Run] = {}
    unreadable: dict[str, tuple[str, str]] = {}
    for path, (tree, problems) in trees.items():  # one tree may lie in another: each run counts once
        for run in tree:
            runs.setdefault(run.path.resolve(), run)
        for text in problems:
            unreadable.setdefault(text, (path.name, text))
    return judge_cells(cells(list(runs.values())), list(unreadable.values()), baselines, terms)


def judge_cells(
    grouped: Sequence[Cell],
    unreadable: Sequence[tuple[str, str]],
    baselines: Path,
    terms: Terms | None = None,
    derivation: Derivation = ANEW,
) -> Judgement:
    """Judge cells that were already read; `unreadable`: (name of a tree, what could not be read in it)."""
    terms = terms or Terms()
    _check_names(terms)
    registries.sound("check", CHECKS)
    problems = [remark("REFUSED", "readable", name, text) for name, text in unreadable]
    library = load(*judged_by(baselines))
    problems += [remark("REFUSED", "baseline", "baselines", text) for text in library.broken]
    usual = [check for name, check in CHECKS.items() if not terms.only or name in (*terms.only, *ALWAYS)]
    checks = [*usual, *(OPTIONAL[name] for name in terms.optional)]
    findings: list[Finding] = []
    refused: dict[Path, str] = {}
    problems += _unrooted(grouped, library)
    # Solo first, as other cells are compared with its runs; all others in turn, while their records are in memory.
    alone = {n: sound(cell.runs, derivation.legible) for n, cell in enumerate(grouped) if cell.is_solo}
    solo = tuple(replace(grouped[n], runs=tuple(kept)) for n, (kept, _) in alone.items() if kept)
    first = {cell.workload: cell for cell in reversed(grouped)}
    for n, cell in enumerate(grouped):
        kept, broken = alone.get(n) or sound(cell.runs, derivation.legible)
        problems += [remark("REFUSED", "readable", run.path.name, text) for run, text in broken]
        refused |= {run.path: text for run, text in broken}
        if kept:
            judged = partial(_judged, library=library, checks=checks, terms=terms, beside=solo, derivation=derivation)
            judged = partial(judged, first=first[cell.workload])
            findings += _findings(replace(cell, runs=tuple(kept)), judged)
    settled = settle(findings, terms.accept_improvement)
    known = expected.load(*judged_by(baselines))
    footer = [*settled.footer, *_predicted(grouped), *_unsealed(grouped), *_differing(terms, grouped, library)]
    seeds = {cell.name: ",".join(str(run.metrics.seed) for run in cell.runs) for cell in grouped}
    about = {cell.name: {"hash": cell.about.config_hash, "seeds": seeds[cell.name]} for cell in grouped}
    verdicts = expected.apply(settled.verdicts, known, terms.today)
    if terms.allow_inconclusive:
        verdicts, lines = _allowed(verdicts)
        footer += lines
    return Judgement([*problems, *verdicts], footer, about, refused)


def _unrooted(grouped: Sequence[Cell], library: Library) -> list[Verdict]:
    """Refuse baselines in use that differ from what was accepted, by their history in git."""
    used: dict[str, Reference] = {}
    for cell in grouped:
        with suppress(Exception):  # a reference that cannot be read is refused elsewhere, by name
            if cell.ok and (match := library.match(cell)) is not None:
                used[match.reference.config_hash] = match.reference
    lines = [unrooted(library.places[key], reference) for key, reference in used.items()]
    return [remark("REFUSED", "baseline", "baselines", line) for line in lines if line]


def _differences(cell: Cell, library: Library) -> list[FieldDifference]:
    """Return every field in which a cell and its reference differ, whatever is judged; [] if the cell cannot be
    read."""
    with suppress(Exception):  # a reference that cannot be read is refused elsewhere, by name
        if cell.ok and (match := library.match(cell)) is not None:
            return [*match.differing, *elsewhere(match.reference, cell.ok)]
    return []


def _differing(terms: Terms, grouped: Sequence[Cell], library: Library) -> list[str]:
    """Return lines on the fields that may differ, and on names among them in which nothing differs: perhaps typos."""
    if not terms.allowed:
        return []
    fields = [field for cell in grouped for field in _differences(cell, library)]
    idle = [name for name in terms.allowed if beyond(fields, [name]) == fields]
    lines = [f"allowed to differ: {', '.join(terms.allowed)}"]
    return lines + ([f"but nothing differs in: {', '.join(idle)}"] if idle else [])


def _predicted(grouped: Sequence[Cell]) -> list[str]:
    """Return a line on predicted runs, as checks speak of training."""
    sources = [run.metrics.source for cell in grouped for run in cell.runs]
    if not (count := sources.count("predicted")):
        return []
    return [f"predicted: {count} of {plural(len(sources), 'run')}: nothing was trained, all was simulated"]


def _unsealed(grouped: Sequence[Cell]) -> list[str]:
    """Return a line on finished runs without a seal, whose results nothing proves."""
    finished = [m for cell in grouped for m in cell.ok]
    if not (count := sum(m.record is None and m.schema_version < SEALED for m in finished)):
        return []
    return [f"unsealed: {count} of {plural(len(finished), 'run')}, of an earlier version: their results are trusted"]


def _judged(
    cell: Cell,
    library: Library,
    checks: Sequence[Check],
    terms: Terms,
    beside: tuple[Cell, ...],
    derivation: Derivation,
    first: Cell,
) -> list[Finding]:
    """Return the findings of all checks on a cell. `first`: the first one of its workload, which is solo's if there is
    one."""
    case, obstacle = _case(cell, library, terms, first)
    case = replace(case, beside=beside, derivation=derivation)
    return [*(result for check in checks if (result := check(case)) is not None), *obstacle]


def _findings(cell: Cell, judged: Callable[[Cell], list[Finding]]) -> list[Finding]:
    """Judge a cell. If a check raises an error, this cell is refused, and all others are judged."""
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
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        line = f"{where}: its files contradict each other: {reason} ({Path(place.filename).name}:{place.lineno})"
        return [remark("REFUSED", "readable", cell.name, line)]


def _allowed(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[str]]:
    """Return the verdicts, those that only lack data with exit code 0. Not among these are runs that were compared
    though fields differ, and seeds that diverged: more data would not help."""
    allowed = [verdict.name == "INCONCLUSIVE" and verdict.check not in ("baseline", "diverged") for verdict in verdicts]
    eased = [replace(v, exit_code=Exit.OK) if ok else v for v, ok in zip(verdicts, allowed, strict=True)]
    return eased, [f"allowed: {sum(allowed)} INCONCLUSIVE, which count as exit code 0"] if any(allowed) else []


def _check_names(terms: Terms) -> None:
    for kind, names, known in (("optional check", terms.optional, OPTIONAL), ("check", terms.only, CHECKS)):
        for name in names:
            if name not in known:
                raise ValueError(unknown(kind, name, known))


def _case(cell: Cell, library: Library, terms: Terms, first: Cell) -> tuple[Case, list[Verdict]]:
    """Return the case, with its reference if both may be compared, and the verdicts that say why not. A cell without a
    finished run needs no reference."""
    if not cell.ok or cell.ok[0].source == "predicted":  # a run in virtual time has learned nothing
        return Case(cell, None), []
    match = library.match(cell)
    if match is None:
        line = f"none for {cell.workload.title}; make one: {next_runs.baseline(cell, library.folder, first)}"
        lacking = remark("NO_BASELINE", "baseline", cell.name, line)
        return Case(cell, None), [replace(lacking, more=next_runs.reference(cell, first))]
    every, name = tuple(match.differing), match.reference.name
    match = replace(match, differing=beyond(match.differing, terms.allowed))
    if differing := tuple(match.differing):
        how = next_runs.baseline(cell, library.folder, first)
        line = f"not comparable with {name}: {_fields(differing)}; make one here: {how}"
        refused = remark("REFUSED", "baseline", cell.name, line, differing)
        return Case(cell, None, terms.allowed), [
            replace(refused, reproduce=command(cell.runs), more=next_runs.reference(cell, first))
        ]
    if match.reference.expired(terms.today) and not terms.allow_expired:
        line = (
            f"the baseline of {name} expired after {match.reference.expires}: make a new one, or pass --allow-expired"
        )
        return Case(cell, None), [remark("EXPIRED", "baseline", cell.name, line)]
    case = Case(cell, match, terms.allowed)
    if every:  # the difference was allowed: compare, but never pass
        line = f"compared with {name} although they differ, as allowed: {_fields(every)}; this proves nothing"
        return case, [remark("INCONCLUSIVE", "baseline", cell.name, line, every)]
    return case, []


def _fields(differing: Sequence[FieldDifference]) -> str:
    return "; ".join(f"{field}: {baseline} in the baseline | {run} here" for field, baseline, run in differing)
