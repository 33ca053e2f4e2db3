"""The bugs of all families."""

from __future__ import annotations

from benchmarks.bugs.average import AVERAGE
from benchmarks.bugs.bug import Bug
from benchmarks.bugs.data import DATA
from benchmarks.bugs.evaluation import EVALUATION
from benchmarks.bugs.forward import FORWARD
from benchmarks.bugs.gradient import GRADIENT
from benchmarks.bugs.optimizer import OPTIMIZER
from benchmarks.bugs.order import ORDER
from benchmarks.bugs.record import RECORD
from benchmarks.bugs.schedule import SCHEDULE
from benchmarks.bugs.unseen import UNSEEN
from benchmarks.bugs.unseen_fifth_rows import FIFTH
from benchmarks.bugs.unseen_last import FOURTH
from benchmarks.bugs.unseen_seventh_rows import SEVENTH
from benchmarks.bugs.unseen_sixth_rows import SIXTH

LISTED = (DATA, ORDER, FORWARD, GRADIENT, OPTIMIZER, SCHEDULE, AVERAGE, EVALUATION, RECORD)
BUGS: dict[str, Bug] = (
    {name: bug for family in LISTED for name, bug in family.bugs.items()} | UNSEEN | FOURTH | FIFTH | SIXTH | SEVENTH
)
"""Name -> bug."""
