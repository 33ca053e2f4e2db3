"""What a result depends on besides its configuration: fields that must be equal to compare results, and fields for
information.

There are three groups. `required`: a difference refuses every comparison. `machine`: a difference refuses only
comparisons of bits and of time. `advisory`: shown to people who look for a cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pydantic import Field, JsonValue

from bench.results.schema import Metrics, Strict


class FieldDifference(NamedTuple):
    """A field in which a run differs from its reference."""

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
        recorded = {"simd": env["simd"]} if env.get("simd") else {}  # earlier versions lack it
        return Fingerprint(
            required={"torch": ".".join(torch.split(".")[:2]), "device": _devices(metrics)},
            machine={"torch": torch, **{name: env.get(name) for name in ("cpu", "cores", "gpus")}} | recorded,
            advisory={name: env.get(name) for name in ("python", "numpy", "torchvision", "hydra-core", "platform")},
        )


def one_machine(runs: Iterable[Metrics]) -> bool:
    """Return whether runs were timed on one kind of machine and of device, by the fields that all recorded. The number of
    cores may differ."""
    known = [Fingerprint.of(m).machine | ({"device": _devices(m)} if m.devices else {}) for m in runs]
    shared = set.intersection(*map(set, known)) - {"cores"} if known else set()
    return all(machine[name] == known[0][name] for machine in known for name in shared)


def _devices(metrics: Metrics) -> str:
    return ", ".join(sorted({device.partition(":")[0] for device in metrics.devices})) or "none"


def differences(
    base: Mapping[str, JsonValue], run: Mapping[str, JsonValue], prefix: str = "env."
) -> list[FieldDifference]:
    """Return the fields that are not equal, in the baseline's order."""
    return [
        FieldDifference(f"{prefix}{name}", _word(base.get(name)), _word(run.get(name)))
        for name in dict.fromkeys([*base, *run])
        if base.get(name) != run.get(name)
    ]


def beyond(differing: list[FieldDifference], allowed: Collection[str]) -> list[FieldDifference]:
    """Return the differences in fields that `allowed` does not name, with or without the prefix."""
    return [each for each in differing if not {each.field, each.field.removeprefix("env.")} & set(allowed)]


def _word(value: JsonValue) -> str:
    return "-" if value is None else str(value)


FREE = ("run_id", "config_hash", "seed", "checkpoint", "script")
"""Keys of a configuration that do not distinguish cells."""


def cell_config(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a resolved configuration without keys that do not distinguish cells: seed, folders, deadlines."""
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
