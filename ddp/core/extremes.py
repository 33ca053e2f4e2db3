"""Who is slowest, and who reported last: what is known of extremes among ranks, so that not all are looked at again.

Owns these two values. When they hold, `ddp.core.allowance` and `ddp.core.pacing` know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ddp.core.persistent import NOBODY, RankSet
from ddp.core.values import replace


@dataclass(frozen=True)
class Slowest:
    """The slowest of the ranks that work, where a plan bounds how far others may go before them."""

    steps: int | None = None
    """Done in the window; None: to be looked for among all."""
    ranks: RankSet = NOBODY
    """Who is that slow."""
    touched: RankSet = NOBODY
    """Of whom something has changed since."""
    barred: RankSet = NOBODY
    """Who may be granted more once these have gone on."""

    def unknown(self) -> Slowest:
        """Return that the slowest has to be looked for."""
        return replace(self, steps=None, ranks=NOBODY)


SOMEBODY = Slowest()


class Recent(NamedTuple):
    """Ranks that reported work at one time, the last there was, and the range of what they take for the samples seen."""

    at: float = 0.0
    rank: int = -1
    """The last of them."""
    ranks: RankSet = NOBODY
    low: float = math.inf
    high: float = -math.inf


NOT_YET = Recent()
