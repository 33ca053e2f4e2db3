"""Chakra traces: read back by Google's protocol buffers after the published schema, and by Chakra's own reader if there."""

from __future__ import annotations

import json
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32
from hypothesis import given
from hypothesis import strategies as st

from bench.results.analysis.stream import sort
from bench.timeline.exports import FORMATS, chakra
from bench.timeline.rewrite import export
from ddp.core.messages.events import Slice
from tests.bench.conftest import Bench
from tests.bench.streams import LAUNCHED, lines, make_records, make_spec
from tests.bench.timeline.test_timeline_verb import CONFIG, run

__all__ = ["run"]

Field = descriptor_pb2.FieldDescriptorProto
WORD, NUMBER, FLAG, SIGNED = Field.TYPE_STRING, Field.TYPE_UINT64, Field.TYPE_BOOL, Field.TYPE_INT64
SCHEMA: dict[str, dict[str, tuple[int, Any, bool]]] = {
    "AttributeProto": {
        "name": (1, WORD, False),
        "int64_val": (9, SIGNED, False),
        "bool_val": (27, FLAG, False),
        "string_val": (29, WORD, False),
    },
    "GlobalMetadata": {"version": (1, WORD, False), "attr": (2, "AttributeProto", True)},
    "Node": {
        "id": (1, NUMBER, False),
        "name": (2, WORD, False),
        "type": (3, Field.TYPE_INT32, False),
        "ctrl_deps": (4, NUMBER, True),
        "data_deps": (5, NUMBER, True),
        "start_time_micros": (6, NUMBER, False),
        "duration_micros": (7, NUMBER, False),
        "attr": (10, "AttributeProto", True),
    },
}
"""Of the published `et_def.proto`, the fields that are written: number, type, whether there may be many."""


@cache
def messages() -> dict[str, Any]:
    """The classes of the messages."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for word, (number, kind, many) in fields.items():
            label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
            field = message.field.add(name=word, number=number, label=label)
            if word.endswith("_val"):
                field.oneof_index = 0
            if isinstance(kind, str):
                field.type, field.type_name = Field.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"ChakraProtoMsg.{name}")) for name in SCHEMA}


def read(file: Path) -> tuple[Any, list[Any]]:
    """A trace, as its messages. The schema knows every byte of it."""
    content, place, parts = file.read_bytes(), 0, []
    while place < len(content):
        size, place = _DecodeVarint32(content, place)
        kind = messages()["Node" if parts else "GlobalMetadata"]
        parts.append(kind.FromString(content[place : place + size]))
        known = parts[-1].SerializeToString()
        parts[-1].DiscardUnknownFields()
        assert parts[-1].SerializeToString() == known
        place += size
    return parts[0], parts[1:]


def about(node: Any) -> dict[str, Any]:
    names = ("int64_val", "bool_val", "string_val")
    return {each.name: next(value for field, value in each.ListFields() if field.name in names) for each in node.attr}


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "nccl_cadence", "cpu_async"])
def test_a_trace_has_all_the_time_of_its_rank(mode: str, tmp_path: Path) -> None:
    spec = make_spec(mode)
    stream = sort(make_records(spec), LAUNCHED)
    zero = float(stream.slices.start.min())
    for rank, file in enumerate(chakra.write(tmp_path, stream, spec)):
        head, nodes = read(file)
        assert head.version == chakra.VERSION
        assert about(head) == {"run_id": spec.run_id, "model": spec.model, "mode": mode}
        assert [node.id for node in nodes] == list(range(len(nodes)))
        assert all(parent < node.id for node in nodes for parent in node.data_deps)
        ends = [node.start_time_micros + node.duration_micros for node in nodes]
        assert all(end == node.start_time_micros for end, node in zip(ends, nodes[1:], strict=False))
        mine = stream.slices.places(rank)
        assert ends[-1] == pytest.approx(1e6 * (stream.slices.stop[mine].max() - zero), abs=1)
        wires = [node for node in nodes if node.type == chakra.COLLECTIVE]
        met = stream.slices.kind[mine] == "exchange"
        assert [node.name.split("_")[-1] for node in wires] == [str(seq) for seq in stream.slices.seq[mine][met]]
        sizes = stream.slices.bytes[mine][met].tolist()
        assert [about(node) for node in wires] == [
            {"is_cpu_op": 0, "comm_type": 0, "comm_size": size} for size in sizes
        ]
        assert {node.name for node in nodes} - {node.name for node in wires} <= {
            f"COMP_NODE_{kind}" for kind in (*set(stream.slices.kind.tolist()), "between")
        }


def test_collectives_beside_computing_hold_up_what_begins_after_them(tmp_path: Path) -> None:
    """Backward from 1 to 3 ms, two collectives beside it from 1.5 to 2.5 and 2.5 to 4 ms, the optimizer from 4 ms on."""
    rows = [("backward", 1.0, 2.0, 0), ("hidden", 1.5, 1.0, 1), ("hidden", 2.5, 1.5, 2), ("optimizer", 4.0, 1.0, 0)]
    nodes = chained(tmp_path, rows)
    assert [(node.name, list(node.data_deps)) for node in nodes] == [
        ("COMP_NODE_backward", []),
        ("COMM_COLL_NODE_ALL_REDUCE_1", [0]),
        ("COMM_COLL_NODE_ALL_REDUCE_2", [0, 1]),
        ("COMP_NODE_between", [0, 1]),
        ("COMP_NODE_optimizer", [2, 3]),
    ]
    assert [(node.start_time_micros, node.duration_micros) for node in nodes][-1] == (3000, 1000)


def test_waiting_for_a_collective_is_not_computing_besides(tmp_path: Path) -> None:
    """Backward from 1 to 3 ms; waiting, from 3.2 ms on, for the collective that began at 2.5 ms: at 3.5 ms all are in it, at
    4 it is over, at 4.5 the rank knows. The optimizer begins at 4.6 ms."""
    rows = [("backward", 1.0, 2.0, 0), ("hidden", 2.5, 1.5, 1), ("wait", 3.2, 1.3, 1), ("optimizer", 4.6, 1.0, 0)]
    nodes = chained(tmp_path, rows, late=1.0)
    assert [(node.name, list(node.data_deps), node.duration_micros) for node in nodes] == [
        ("COMP_NODE_backward", [], 2000),
        ("COMM_COLL_NODE_ALL_REDUCE_1", [0], 1500),
        ("COMP_NODE_between", [0], 200),
        ("COMP_NODE_wait", [1, 2], 500),
        ("COMP_NODE_between", [3], 100),
        ("COMP_NODE_optimizer", [4], 1000),
    ]


def chained(folder: Path, rows: list[tuple[str, float, float, int]], late: float = 0.0) -> list[Any]:
    """The nodes of rank 1 that has these slices, in milliseconds. Rank 0 joins its collectives so much later."""
    slices = [Slice(1e-3 * at, 1, kind, 1e-3 * ms, seq, 8) for kind, at, ms, seq in rows]
    slices += [
        Slice(1e-3 * (at + late), 0, kind, 1e-3 * (ms - late), seq, 8) for kind, at, ms, seq in rows if kind == "hidden"
    ]
    slices.append(Slice(1e-3, 0, "forward", 1e-3))
    chakra.write(folder, sort(slices, 0.0), make_spec("nccl_sync"))
    return read(folder / "chakra" / "rank.1.et")[1]


def test_collectives_of_some_ranks_have_a_group(tmp_path: Path) -> None:
    slices = [
        Slice(1.0 + seq, rank, "exchange", 0.5, seq, 8) for seq in range(3) for rank in range(2 if seq == 1 else 3)
    ]
    files = chakra.write(tmp_path, sort(slices, 0.0), make_spec("nccl_sync", 3))
    assert json.loads(files[-1].read_text()) == {"1": [0, 1]}
    groups = [about(node).get("pg_name") for node in read(files[0])[1] if node.type == chakra.COLLECTIVE]
    assert groups == [None, "1", None]


@given(st.integers(0, 2**63), st.text(max_size=200), st.lists(st.integers(0, 2**40), max_size=200))
def test_any_node_reads_as_it_was(number: int, name: str, after: list[int]) -> None:
    node = chakra.TraceNode(number, name, chakra.COMPUTE, tuple(after), number, number, {"words": name, "flag": True})
    back = messages()["Node"].FromString(chakra.encoded(node))
    assert (back.id, back.name, list(back.data_deps), back.start_time_micros) == (number, name, after, number)
    assert about(back) == {"is_cpu_op": False, "words": name, "flag": True}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written_by_the_verb(name: str, bench: Bench, run: Path, capsys: Any) -> None:
    assert bench("timeline", str(run), "--to", name) == 0
    files = [Path(line) for line in capsys.readouterr().out.split()]
    assert files
    assert all(file.stat().st_size for file in files)
    assert export(run, name) == files


@pytest.mark.parametrize(
    ("words", "change", "said"),
    [
        (["--to", "chakr"], {}, "did you mean 'chakra'"),
        (["--to", "chakra"], {"engine": "zero2", "backend": "zero2", "policy": None}, "which collectives"),
    ],
)
def test_what_cannot_be_written_is_said(
    words: list[str], change: dict[str, Any], said: str, bench: Bench, run: Path, capsys: Any
) -> None:
    (run / "config.json").write_text(json.dumps(CONFIG | change))
    assert bench("timeline", str(run), *words) == 2
    assert said in capsys.readouterr().err
    assert not (run / "chakra").exists()


def test_a_run_without_slices_has_no_trace(bench: Bench, run: Path, capsys: Any) -> None:
    kept = [each for each in make_records(make_spec("nccl_cadence")) if not isinstance(each, Slice)]
    (run / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines(kept)))
    assert bench("timeline", str(run), "--to", "chakra") == 2
    assert "no rank recorded" in capsys.readouterr().err


def test_chakra_reads_it(tmp_path: Path) -> None:
    """Their own reader, where it is installed (from https://github.com/mlcommons/chakra; no index has it)."""
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
    library = pytest.importorskip("chakra.src.third_party.utils.protolib")
    spec = make_spec("nccl_sync")
    for file in chakra.write(tmp_path, sort(make_records(spec), LAUNCHED), spec):
        node, types = schema.Node(), set()
        with closing(library.openFileRd(str(file))) as trace:
            assert library.decodeMessage(trace, schema.GlobalMetadata())
            while library.decodeMessage(trace, node):
                types.add(schema.NodeType.Name(node.type))
        assert types == {"COMP_NODE", "COMM_COLL_NODE"}
