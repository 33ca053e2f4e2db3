"""Persistent values by rank, whose successors share what did not change: a row, a set and a log. A change costs what it
touches.

Owns these three types. Does not know what they contain. None is ever modified, so a reference stays valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Generic, TypeVar

T = TypeVar("T")
SPARSE = 32
"""Sets with fewer ranks are iterated bit by bit."""


class Row(Generic[T]):
    """One value per rank, in blocks of about sqrt(number of ranks): a change copies one block and the list of blocks."""

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

    def pick(self, ranks: Iterable[int]) -> list[T]:
        """Return the values of `ranks`, in their order."""
        blocks, shift, low = self._blocks, self._shift, (1 << self._shift) - 1
        return [blocks[rank >> shift][rank & low] for rank in ranks]

    def put(self, rank: int, value: T) -> Row[T]:
        """Return the row with another value at `rank`."""
        return self.update({rank: value})

    def update(self, values: Mapping[int, T]) -> Row[T]:
        """Return the row with other values at some ranks: rank -> value."""
        new, shift, low = Row.__new__(Row), self._shift, (1 << self._shift) - 1
        new._size, new._shift = self._size, shift
        new._blocks = blocks = self._blocks[:]
        for index in {rank >> shift for rank in values}:
            blocks[index] = blocks[index][:]
        for rank, value in values.items():
            blocks[rank >> shift][rank & low] = value
        return new

    def map(self, change: Callable[[T], T]) -> Row[T]:
        """Return the row with `change` applied to every value."""
        return Row(map(change, self))


class RankSet:
    """A set of ranks, iterated in ascending order; stored as the bits of an integer."""

    __slots__ = ("_bits",)

    def __init__(self, ranks: Iterable[int] = ()) -> None:
        bits = 0
        many = ranks if isinstance(ranks, tuple | list) else list(ranks)
        if len(many) < SPARSE:
            for rank in many:
                bits |= 1 << rank
        else:  # each of the operations above creates an integer as long as the highest rank
            row = bytearray((max(many) >> 3) + 1)
            for rank in many:
                row[rank >> 3] |= 1 << (rank & 7)
            bits |= int.from_bytes(row, "little")
        self._bits = bits

    @staticmethod
    def of_bits(bits: int) -> RankSet:
        """Return the set of ranks whose bits are set."""
        new = RankSet.__new__(RankSet)
        new._bits = bits
        return new

    @staticmethod
    def below(size: int) -> RankSet:
        """Return the set of all ranks below `size`."""
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
        """Return the set with `rank` added."""
        return RankSet.of_bits(self._bits | 1 << rank)

    def union(self, other: RankSet) -> RankSet:
        """Return the union of both sets."""
        return RankSet.of_bits(self._bits | other._bits)

    def both(self, other: RankSet) -> RankSet:
        """Return the ranks that are in both sets."""
        return RankSet.of_bits(self._bits & other._bits)

    def without(self, other: RankSet) -> RankSet:
        """Return the set without the ranks in `other`."""
        return RankSet.of_bits(self._bits & ~other._bits)

    def remove(self, rank: int) -> RankSet:
        """Return the set without `rank`, whether or not it contained it."""
        return RankSet.of_bits(self._bits & ~(1 << rank)) if rank in self else self


NOBODY = RankSet()


class Log(Generic[T]):
    """Entries in the order of their addition. A log and its continuation share the entries."""

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
        # If another log continues this one already, entries after this one's end are not its own.
        new._entries = self._entries if len(self._entries) == self._size else self._entries[: self._size]
        new._entries += entries
        new._size = self._size + len(entries)
        return new
