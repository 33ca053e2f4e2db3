"""The bugs of all families."""

from __future__ import annotations

from benchmarks.bugs import (
    unseen_eighteenth,
    unseen_eighth,
    unseen_eighth_steps,
    unseen_eleventh,
    unseen_eleventh_results,
    unseen_eleventh_steps,
    unseen_fifteenth,
    unseen_fifteenth_results,
    unseen_fourteenth,
    unseen_fourteenth_results,
    unseen_nineteenth,
    unseen_nineteenth_results,
    unseen_ninth,
    unseen_ninth_results,
    unseen_ninth_steps,
    unseen_seventh,
    unseen_seventh_results,
    unseen_seventh_steps,
    unseen_sixteenth,
    unseen_sixteenth_results,
    unseen_sixth,
    unseen_sixth_records,
    unseen_sixth_results,
    unseen_tenth,
    unseen_tenth_results,
    unseen_tenth_steps,
    unseen_thirteenth,
    unseen_twelfth,
    unseen_twentieth,
    unseen_twentieth_results,
)
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

LISTED = (DATA, ORDER, FORWARD, GRADIENT, OPTIMIZER, SCHEDULE, AVERAGE, EVALUATION, RECORD)
LOTS = (
    *(UNSEEN, FOURTH, FIFTH, unseen_sixth.LOT.bugs, unseen_sixth_results.LOT.bugs, unseen_sixth_records.LOT.bugs),
    *(unseen_seventh.LOT.bugs, unseen_seventh_steps.LOT.bugs, unseen_seventh_results.LOT.bugs),
    *(unseen_eighth.LOT.bugs, unseen_eighth_steps.LOT.bugs),
    *(unseen_ninth.LOT.bugs, unseen_ninth_steps.LOT.bugs, unseen_ninth_results.LOT.bugs),
    *(unseen_tenth.LOT.bugs, unseen_tenth_steps.LOT.bugs, unseen_tenth_results.LOT.bugs),
    *(unseen_eleventh.LOT.bugs, unseen_eleventh_steps.LOT.bugs, unseen_eleventh_results.LOT.bugs),
    *(unseen_twelfth.LOT.bugs, unseen_thirteenth.LOT.bugs),
    *(unseen_fourteenth.LOT.bugs, unseen_fourteenth_results.LOT.bugs),
    *(unseen_fifteenth.LOT.bugs, unseen_fifteenth_results.LOT.bugs),
    *(unseen_sixteenth.LOT.bugs, unseen_sixteenth_results.LOT.bugs, unseen_eighteenth.LOT.bugs),
    *(unseen_nineteenth.LOT.bugs, unseen_nineteenth_results.LOT.bugs),
    *(unseen_twentieth.LOT.bugs, unseen_twentieth_results.LOT.bugs),
)
"""Those by people who had not seen the checks, and the sixth and eighth, by somebody who looked for gaps."""
BUGS: dict[str, Bug] = {name: bug for lot in (*(family.bugs for family in LISTED), *LOTS) for name, bug in lot.items()}
"""Name -> bug."""
