"""Chakra execution traces of a run, one file per rank, which ASTRA-sim replays over other networks.

Owns the mapping from slices to nodes, and their encoding: protocol buffers with length prefixes, by
`schema/protobuf/et_def.proto` of https://github.com/mlcommons/chakra (version 1.0.0). A collective has its bytes, and
its recorded duration including waiting, for programs that only replay. All other nodes have their recorded duration,
gaps between slices, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.base.writing import write_bytes, write_text
from bench.results.analysis.slices import EXPOSED
from bench.results.analysis.stream import RunRecords, Slices
from bench.timeline.about import Named
from ddp.backends import BACKENDS

PLACE = "chakra"
"""Folder of the files inside a run folder; ASTRA-sim's `workload-configuration` is `chakra/rank` in it."""
GROUPS = "groups.json"
"""File of the groups of collectives with fewer than all ranks: number of a group -> its ranks."""
VERSION = "1.0.0"
COMPUTE, COLLECTIVE = 4, 7
"""Node types COMP_NODE and COMM_COLL_NODE."""
ALL_REDUCE = 0
"""Type of the collective."""

Value = int | bool | str
Groups = Mapping[int, tuple[tuple[int, ...], int]]
"""Collective -> (its ranks, number of their group); group 0 is all ranks."""


@dataclass(frozen=True)
class TraceNode:
    """A node: an interval of a rank's time. Times are whole microseconds since the first slice of the run."""

    number: int
    name: str
    type: int
    after: tuple[int, ...]
    """Nodes of the same rank that it depends on."""
    start: int
    duration: int
    about: Mapping[str, Value]


def write(folder: Path, stream: RunRecords, spec: Named) -> list[Path]:
    """Write the traces of a run below its folder, and return the files. Raises ValueError if a trace cannot hold it,
    OSError."""
    backend = BACKENDS.get(str(spec.backend)) if spec.backend is not None else None
    if backend is not None and not backend.averages:
        raise ValueError(
            f"{folder}: mode {spec.mode} does not record which collectives it has; chakra takes nccl, cpu, graph and solo"
        )
    if not stream.slices.rank.size:
        raise ValueError(f"{folder}: no rank recorded where its time went")
    groups = groups_of(stream, spec.world_size)
    place = folder / PLACE
    place.mkdir(exist_ok=True)
    about = {"run_id": spec.run_id, "model": spec.model, "mode": spec.mode}
    files = [place / f"rank.{rank}.et" for rank in range(spec.world_size)]
    for rank, file in enumerate(files):
        messages = [metadata(about), *map(encoded, nodes(stream, rank, groups))]
        write_bytes(file, b"".join(varint(len(message)) + message for message in messages))
    if some := {str(number): members for members, number in groups.values() if number}:
        files.append(place / GROUPS)
        write_text(files[-1], json.dumps(some) + "\n")
    return files


def groups_of(stream: RunRecords, size: int) -> Groups:
    """Return collective -> (its ranks, number of their group)."""
    members: dict[int, set[int]] = {}
    for slices in (stream.slices, stream.behind):
        exchange = slices.kind == "exchange"
        for rank, seq in zip(slices.rank[exchange].tolist(), slices.seq[exchange].tolist(), strict=True):
            members.setdefault(seq, set()).add(rank)
    numbers = {tuple(range(size)): 0}
    groups = {}
    for seq, ranks in sorted(members.items()):
        group = tuple(sorted(ranks))
        groups[seq] = group, numbers.setdefault(group, len(numbers))
    return groups


def nodes(stream: RunRecords, rank: int, groups: Groups) -> list[TraceNode]:
    """Return the nodes of a rank, in order of their begins."""
    chain, zero = _Chain(groups), float(stream.slices.start.min())
    rows = [(False, each) for each in _rows(stream.slices, rank, zero)]
    rows += [(True, each) for each in _rows(stream.behind, rank, zero)]
    for hidden, row in sorted(rows, key=lambda each: (each[1].start, each[0])):
        if hidden:
            chain.add_beside(row)
        else:
            chain.add(row)
    return chain.nodes


class _Row(NamedTuple):
    """A slice, in whole microseconds."""

    kind: str
    start: int
    stop: int
    seq: int
    size: int


def _rows(slices: Slices, rank: int, zero: float) -> Iterator[_Row]:
    mine = slices.places(rank)
    begins, ends = (np.rint(1e6 * (times[mine] - zero)).astype(int).tolist() for times in (slices.start, slices.stop))
    columns = (slices.kind[mine].tolist(), begins, ends, slices.seq[mine].tolist(), slices.bytes[mine].tolist())
    return map(_Row._make, zip(*columns, strict=True))


class _Chain:
    """Builds the nodes of a rank. A slice or gap depends on the one before it, and on every concurrent collective that had
    ended when it began. A collective also depends on the one before it. Waiting for a concurrent collective has no node:
    what comes next depends on that collective."""

    def __init__(self, groups: Groups) -> None:
        self.nodes: list[TraceNode] = []
        self._groups = groups
        self._before: set[int] = set()
        """Nodes on which the next slice depends."""
        self._collective: set[int] = set()
        """The last collective."""
        self._beside: list[tuple[int, int]] = []
        """(end, number) of concurrent collectives on which nothing depends yet."""
        self._ended = 0

    def add(self, row: _Row) -> None:
        """Add a slice of the training thread, and the gap before it."""
        if row.start > self._ended:
            self._before = {self._put("COMP_NODE_between", self._until(self._ended), self._ended, row.start)}
        if row.kind == "exchange":
            self._before = self._collective = {self._meet(row, self._until(row.start) | self._collective)}
        elif not (row.kind == EXPOSED or (row.kind == "wait" and self._on_the_way(row.start))):
            moved = {"tensor_size": row.size} if row.size else {}
            after = self._until(row.start)
            self._before = {self._put(f"COMP_NODE_{row.kind}", after, row.start, row.stop, COMPUTE, moved)}
        self._ended = max(row.stop, self._ended)

    def _until(self, begin: int) -> set[int]:
        """Return the nodes on which depends what begins then in the training thread."""
        ended = {number for end, number in self._beside if end <= begin}
        self._beside = [each for each in self._beside if each[0] > begin]
        return self._before | ended

    def _on_the_way(self, at: int) -> bool:
        return any(end > at for end, _ in self._beside)

    def add_beside(self, row: _Row) -> None:
        """Add a collective that ran concurrently with computation."""
        number = self._meet(row, self._before | self._collective)
        self._collective = {number}
        self._beside.append((row.stop, number))

    def _meet(self, row: _Row, after: set[int]) -> int:
        about: dict[str, Value] = {"comm_type": ALL_REDUCE, "comm_size": row.size}
        if group := self._groups[row.seq][1]:
            about["pg_name"] = str(group)
        return self._put(f"COMM_COLL_NODE_ALL_REDUCE_{row.seq}", after, row.start, row.stop, COLLECTIVE, about)

    def _put(
        self,
        name: str,
        after: set[int],
        start: int,
        stop: int,
        type: int = COMPUTE,
        about: Mapping[str, Value] = MappingProxyType({}),
    ) -> int:
        number = len(self.nodes)
        self.nodes.append(TraceNode(number, name, type, tuple(sorted(after)), start, stop - start, about))
        return number


def varint(value: int) -> bytes:
    """Return a number of 0 or more as a varint: seven bits per byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _block(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def attribute(name: str, value: Value) -> bytes:
    """Return an AttributeProto: flags as bool_val, numbers as int64_val, texts as string_val."""
    head = _block(1, name.encode())
    if isinstance(value, str):
        return head + _block(29, value.encode())
    return head + _number(27 if isinstance(value, bool) else 9, int(value))


def metadata(about: Mapping[str, Value]) -> bytes:
    """Return a GlobalMetadata."""
    return _block(1, VERSION.encode()) + b"".join(_block(2, attribute(*item)) for item in about.items())


def encoded(node: TraceNode) -> bytes:
    """Return a Node. Its dependencies are data dependencies, the only kind that every reader knows."""
    body = _number(1, node.number) + _block(2, node.name.encode()) + _number(3, node.type)
    if node.after:
        body += _block(5, b"".join(map(varint, node.after)))
    body += _number(6, node.start) + _number(7, node.duration)
    about = {"is_cpu_op": False, **node.about}
    return body + b"".join(_block(10, attribute(*item)) for item in about.items())
