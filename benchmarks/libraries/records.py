"""Msgspec against pydantic, for lines of `events.jsonl` and for `metrics.json`."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, JsonValue, TypeAdapter

from bench.results.schema import Metrics
from benchmarks.libraries.compare import compare
from ddp.process import codec
from tests.bench.streams import lines, make_metrics, make_records, make_spec


def records() -> None:
    """Lines of `events.jsonl` and whole `metrics.json`, by msgspec and by pydantic."""
    spec = make_spec("nccl_cadence", world_size=2)
    made = make_records(spec)
    text = list(lines(made))
    adapters = {name: TypeAdapter(_plain(cls)) for name, cls in (codec.EVENTS | codec.COMMANDS).items()}
    ordered = [adapters[type(record).__name__] for record in made]
    compare(
        f"writing {len(made)} records",
        {
            "msgspec": lambda: [codec.encode(record) for record in made],
            "pydantic": lambda: [adapter.dump_json(record) for adapter, record in zip(ordered, made, strict=True)],
        },
    )
    compare(
        f"reading {len(made)} records",
        {
            "msgspec": lambda: [codec.decode(line) for line in text],
            "pydantic": lambda: [adapter.validate_json(line) for adapter, line in zip(ordered, text, strict=True)],
        },
    )
    body = json.loads(make_metrics(spec, made).model_dump_json())
    twin: Any = _twin(Metrics)
    compare(
        "100 metrics.json, from plain objects",
        {
            "pydantic": lambda: [Metrics.model_validate(body) for _ in range(100)],
            "msgspec": lambda: [msgspec.convert(body, twin) for _ in range(100)],
        },
    )
    for change in ({"world_size": "two", "lr": "x"}, {"lr": float("nan")}):
        for read in (Metrics.model_validate, lambda damaged: msgspec.convert(damaged, twin)):
            try:
                print("  accepted:", change, type(read(body | change)).__module__)
            except ValueError as error:
                print("  refused: ", change, " ".join(str(error).split())[:160])


def _twin(kind: Any) -> Any:
    """A type of pydantic as one of msgspec."""
    if kind is JsonValue:
        return Any
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        hints = get_type_hints(kind)
        fields = [
            (name, _twin(hints[name]))
            if about.is_required()
            else (
                name,
                _twin(hints[name]),
                msgspec.field(default_factory=lambda about=about: about.get_default(call_default_factory=True)),
            )
            for name, about in kind.model_fields.items()
        ]
        return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
    return _inside(kind, _twin)


def _plain(kind: Any) -> Any:
    """Return a value of the core as a dataclass, which pydantic knows."""
    if not dataclasses.is_dataclass(kind):
        return _inside(kind, _plain)
    hints = get_type_hints(kind)
    made = [(each.name, _plain(hints[each.name]), _default(each)) for each in dataclasses.fields(kind)]
    return dataclasses.make_dataclass(kind.__name__, made, frozen=True)


def _default(field: dataclasses.Field[Any]) -> Any:
    return dataclasses.field(default=field.default) if field.default_factory is dataclasses.MISSING else field


def _inside(kind: Any, turned: Callable[[Any], Any]) -> Any:
    """Return a type with those of its contents turned."""
    origin, arguments = get_origin(kind), tuple(map(turned, get_args(kind)))
    if origin in (Union, types.UnionType):
        return Union[arguments]  # noqa: UP007
    return origin[arguments] if origin in (list, dict, tuple) and arguments else kind
