"""Ranks that became slow, as rows of a result and as text. Pure. `ddp.core.anomalies.slowness` finds them."""

from __future__ import annotations

from bench.results.schema_goodput import SlowRankRow
from ddp.core.anomalies.slowness import CAUSES, SlowFold, SlowRank

WORDS = dict(zip(CAUSES, ("computing", "its input", "the machine, which others use as well", "its link"), strict=True))
"""Cause -> what takes longer, as text."""


def slow_ranks(fold: SlowFold, zero: float) -> list[SlowRankRow] | None:
    """Return a row for each time that a rank became slow; None if ranks did not report the parts of their steps.
    `zero`: the launch on the clock of the records, seconds."""
    return [row(each, zero) for each in fold.ranks] if fold.known else None


def row(slow: SlowRank, zero: float) -> SlowRankRow:
    """Return the row of one slow rank."""
    times = {"seconds": max(slow.since - zero, 0.0), "named_s": slow.named - zero}
    healed = None if slow.healed is None else slow.healed - zero
    about = {"rank": slow.rank, "cause": slow.cause, "factor": slow.factor, "windows": slow.windows}
    return SlowRankRow.model_validate(about | times | {"healed_s": healed})


def sentence(row: SlowRankRow) -> str:
    """Return the row as one line of text."""
    end = "" if row.healed_s is None else f", until {row.healed_s:.1f} s"
    return (
        f"rank {row.rank} took {row.factor:.1f} times as long as before from {row.seconds:.1f} s after launch{end}: "
        f"{WORDS[row.cause]}"
    )
