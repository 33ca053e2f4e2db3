"""What a result depends on beside its configuration: what must be equal to compare it, and what is only told.

Three groups. `required`: a difference refuses every comparison. `machine`: a difference refuses comparisons of bits and of
time, and no other. `advisory`: for whoever looks for a cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pydantic import Field, JsonValue

from bench.results.schema import Metrics, Strict


class FieldDifference(NamedTuple):
    """A field in which runs are not as their reference."""

    field: str
    baseline: str
    run: str


class Fingerprint(Strict):
    """Of the runs of one cell, by name of the field."""

    required: dict[str, JsonValue] = Field(description="must be equal for any comparison")
    machine: dict[str, JsonValue] = Field(description="must be equal to compare bits or time")
    advisory: dict[str, JsonValue] = Field(description="for information")

    @staticmethod
    def of(metrics: Metrics) -> Fingerprint:
        """Return the fingerprint of a run."""
        env = metrics.env
        torch = str(env.get("torch"))
        recorded = {"simd": env["simd"]} if env.get("simd") else {}  # earlier versions did not
        return Fingerprint(
            required={"torch": ".".join(torch.split(".")[:2]), "device": _devices(metrics)},
            machine={"torch": torch, **{name: env.get(name) for name in ("cpu", "cores", "gpus")}} | recorded,
            advisory={name: env.get(name) for name in ("python", "numpy", "torchvision", "hydra-core", "platform")},
        )


def one_machine(runs: Iterable[Metrics]) -> bool:
    """Return whether runs were timed on one kind of machine, as far as all of them recorded it. They may differ in the
    number of cores that they were given."""
    known = [Fingerprint.of(m).machine for m in runs]
    shared = set.intersection(*map(set, known)) - {"cores"} if known else set()
    return all(machine[name] == known[0][name] for machine in known for name in shared)


def _devices(metrics: Metrics) -> str:
    return ", ".join(sorted({device.partition(":")[0] for device in metrics.devices})) or "none"


def differences(
    base: Mapping[str, JsonValue], run: Mapping[str, JsonValue], prefix: str = "env."
) -> list[FieldDifference]:
    """Return the fields that are not equal, in the order of the baseline's."""
    return [
        FieldDifference(f"{prefix}{name}", _word(base.get(name)), _word(run.get(name)))
        for name in dict.fromkeys([*base, *run])
        if base.get(name) != run.get(name)
    ]


def beyond(differing: list[FieldDifference], allowed: Collection[str]) -> list[FieldDifference]:
    """Return those that nobody has allowed, by the name of the field with or without its prefix."""
    return [each for each in differing if not {each.field, each.field.removeprefix("env.")} & set(allowed)]


def _word(value: JsonValue) -> str:
    return "-" if value is None else str(value)


FREE = ("run_id", "config_hash", "seed", "checkpoint", "script")
"""Keys of a configuration that do not make a cell."""


def cell_config(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a resolved configuration without what does not make a cell: seed, folders, deadlines."""
    kept = {key: value for key, value in config.items() if key not in FREE}
    for group, free in (("data", "dir"), ("cluster", "deadline_s")):
        inner = kept.get(group)
        if isinstance(inner, dict):
            kept[group] = {key: value for key, value in inner.items() if key != free}
    return kept


def flat(config: Mapping[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    """Return `{"train": {"lr": 1}}` as `{"train.lr": 1}`."""
    values: dict[str, JsonValue] = {}
    for key, value in config.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return values
