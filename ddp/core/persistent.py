"""Values by rank of which the next one shares what did not change: a row, a set and a log. They cost what is touched.

Owns these three kinds of value. Knows nothing of what is in them. None is ever changed: whoever has one may keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

T = TypeVar("T")
SPARSE = 32
"""A set of fewer ranks is read bit by bit."""


class Row(Generic[T]):
    """One value for each rank, in blocks of about the root of their number: a new value copies one block, and the list of
    blocks."""

    __slots__ = ("_blocks", "_shift", "_size")

    def __init__(self, values: Iterable[T]) -> None:
        every = list(values)
        self._size, self._shift = len(every), (len(every).bit_length() + 1) // 2
        width = 1 << self._shift
        self._blocks = [every[start : start + width] for start in range(0, len(every), width)]

    def __getitem__(self, rank: int) -> T:
        return self._blocks[rank >> self._shift][rank & (1 << self._shift) - 1]

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._blocks)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self._blocks == other._blocks

    def __repr__(self) -> str:
        return repr(tuple(self))

    def put(self, rank: int, value: T) -> Row[T]:
        """Return the row with another value at `rank`."""
        new, shift = Row.__new__(Row), self._shift
        new._size, new._shift = self._size, shift
        new._blocks = blocks = self._blocks[:]
        blocks[rank >> shift] = block = blocks[rank >> shift][:]
        block[rank & (1 << shift) - 1] = value
        return new

    def edit(self) -> RowDraft[T]:
        """Return a draft of another row, which begins as this one."""
        return RowDraft(self._blocks[:], self._shift, self._size)

    def map(self, change: Callable[[T], T]) -> Row[T]:
        """Return the row with every value changed."""
        return Row(map(change, self))


class RowDraft(Generic[T]):
    """A row in the making: each block is copied once, however many of its values are set."""

    __slots__ = ("_blocks", "_own", "_shift", "_size")

    def __init__(self, blocks: list[list[T]], shift: int, size: int) -> None:
        self._blocks, self._shift, self._size = blocks, shift, size
        self._own: set[int] = set()

    def __getitem__(self, rank: int) -> T:
        return self._blocks[rank >> self._shift][rank & (1 << self._shift) - 1]

    def __setitem__(self, rank: int, value: T) -> None:
        block = rank >> self._shift
        if block not in self._own:
            self._own.add(block)
            self._blocks[block] = self._blocks[block][:]
        self._blocks[block][rank & (1 << self._shift) - 1] = value

    def done(self) -> Row[T]:
        """Return the row. The draft is not to be changed any more."""
        new: Row[T] = Row.__new__(Row)
        new._blocks, new._shift, new._size = self._blocks, self._shift, self._size
        return new


class RankSet:
    """Ranks, in ascending order: the bits of a number."""

    __slots__ = ("_bits",)

    def __init__(self, ranks: Iterable[int] = ()) -> None:
        bits = 0
        many = ranks if isinstance(ranks, tuple | list) else list(ranks)
        if len(many) < SPARSE:
            for rank in many:
                bits |= 1 << rank
        else:  # each of the above makes a number as long as the highest rank
            row = bytearray((max(many) >> 3) + 1)
            for rank in many:
                row[rank >> 3] |= 1 << (rank & 7)
            bits |= int.from_bytes(row, "little")
        self._bits = bits

    @staticmethod
    def of_bits(bits: int) -> RankSet:
        """Return the ranks whose bits are set."""
        new = RankSet.__new__(RankSet)
        new._bits = bits
        return new

    @staticmethod
    def below(size: int) -> RankSet:
        """Return all of so many ranks."""
        return RankSet.of_bits((1 << size) - 1)

    def __contains__(self, rank: int) -> bool:
        return self._bits & 1 << rank != 0

    def __bool__(self) -> bool:
        return self._bits != 0

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        bits = self._bits
        if bits.bit_count() < SPARSE:
            while bits:
                low = bits & -bits
                yield low.bit_length() - 1
                bits ^= low
            return
        digits = bin(bits)[:1:-1]
        rank = digits.find("1")
        while rank >= 0:
            yield rank
            rank = digits.find("1", rank + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def add(self, rank: int) -> RankSet:
        """Return the set with `rank`."""
        return RankSet.of_bits(self._bits | 1 << rank)

    def union(self, other: RankSet) -> RankSet:
        """Return the ranks of both."""
        return RankSet.of_bits(self._bits | other._bits)

    def without(self, other: RankSet) -> RankSet:
        """Return those of its ranks that are not in `other`."""
        return RankSet.of_bits(self._bits & ~other._bits)

    def remove(self, rank: int) -> RankSet:
        """Return the set without `rank`, whether or not it was in there."""
        return RankSet.of_bits(self._bits & ~(1 << rank)) if rank in self else self


NOBODY = RankSet()


class Log(Generic[T]):
    """Entries in the order in which they came. Logs that continue one another share their entries."""

    __slots__ = ("_entries", "_size")

    def __init__(self, entries: Iterable[T] = ()) -> None:
        self._entries = list(entries)
        self._size = len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return islice(self._entries, self._size)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def add(self, *entries: T) -> Log[T]:
        """Return the log with more entries."""
        new: Log[T] = Log.__new__(Log)
        # Where another log continues this one already, the entries behind this one's are not its own.
        new._entries = self._entries if len(self._entries) == self._size else self._entries[: self._size]
        new._entries += entries
        new._size = self._size + len(entries)
        return new
