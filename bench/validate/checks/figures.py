"""The figures of a result follow from its records. Other code than the engine's computes them anew, by the schema's
definitions.

`validate` refuses a result that its records do not give by the engine's own code: somebody edited it. An error in that
code would be in every result alike. This check finds it: doubled speeds, a loss of one rank only, waiting that is
booked as computing, steps of a window that no rank made. For runs that lost a rank it recomputes who was lost, when, and
what was learned, but no times.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.validate.records.reading import lost_nobody
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure
from bench.validate.recount.goodput import arrivals, goodput
from bench.validate.recount.identity import identity
from bench.validate.recount.learning import learning
from bench.validate.recount.losses import losses, slow_ranks
from bench.validate.recount.rounds import brought_in, entered, rounds
from bench.validate.recount.timing import meeting, timing
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict

WORDS = 4
"""First version of results that uses the present definitions."""


def check(case: Case) -> Verdict | None:
    """Return FAIL at the first figure that differs; None if nothing is recorded."""
    failure, count = case.compared("figures", _compared, lost=True)
    if failure or not count:
        return failure
    line = f"{plural(count, 'figure')} recomputed from the records agree with the result"
    return verdict("PASS", "figures", case.cell, line)


def _compared(run: Run, known: Records) -> tuple[str, int]:
    """Return the first figure that differs (empty: none), and the number of figures that agree."""
    m, count = run.metrics, 0
    if m.record is None or m.schema_version < WORDS or m.source or not (known.ready and known.progress):
        return "", 0  # earlier versions had other definitions
    for figure in figures(run, known):
        if wrong := figure.wrong:
            return wrong, count
        count += 1
    return "", count


def figures(run: Run, known: Records) -> Iterator[Figure]:
    """Iterate over the figures of a run that can be recomputed."""
    m, part = run.metrics, known.measured()
    yield from losses(m, known)
    if not m.begun_without:
        yield from identity(m, part, run.config)
        yield from learning(m, known, lost_nobody(m))
    if not lost_nobody(m):
        yield from brought_in(known)
        yield from entered(known)
        return
    yield from slow_ranks(m, known)
    yield from timing(m, part)
    yield from meeting(m, part)
    yield from rounds(m, known)
    yield from goodput(m, known)
    yield from arrivals(m, known)
