"""The bugs of all families, and of all files `unseen_*`, which are imported here."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from benchmarks import bugs
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

LISTED = (DATA, ORDER, FORWARD, GRADIENT, OPTIMIZER, SCHEDULE, AVERAGE, EVALUATION, RECORD)
for file in iter_modules(bugs.__path__):
    if file.name.startswith("unseen_"):
        import_module(f"{bugs.__name__}.{file.name}")
BUGS: dict[str, Bug] = {name: bug for lot in (*(family.bugs for family in LISTED), UNSEEN) for name, bug in lot.items()}
"""Name -> bug."""
