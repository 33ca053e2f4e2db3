"""Whether ranks draw numbers of their own from Python's and NumPy's generators, in every epoch others.

Each rank says what state they were in at the start, and before and after it began an epoch. Where a beginning changed it to
one that was there before, or on another rank, the numbers that follow repeat. Pure.
"""

from __future__ import annotations

from bench.validate.records.run_records import Records


def drawn_again(known: Records) -> str:
    """Say which numbers repeat; empty: none do, or it is not known."""
    seen: dict[str, int] = {}
    for event in known.finished:
        if event.numbers and (other := seen.setdefault(event.numbers[0], event.rank)) != event.rank:
            return f"ranks {other} and {event.rank} draw the same random numbers of NumPy"
    begun = {state: ("at the start", rank) for state, rank in seen.items()}
    for event in known.finished:
        for number, (before, after) in enumerate(zip(event.numbers[1::2], event.numbers[2::2], strict=False), 1):
            here = f"in its epoch {number}", event.rank
            if before != after and (first := begun.setdefault(after, here)) != here:
                return f"rank {event.rank} draws the random numbers of NumPy {here[0]} that rank {first[1]} drew {first[0]}"
    return ""
