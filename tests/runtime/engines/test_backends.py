"""What a backend's entry says is what its class has: the harness believes the entry, and never imports the class."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from ddp.backends import BACKENDS, SyncKind, world_of
from ddp.backends.base import CollectiveAverage, SnapshotAverage, StepExchange, load
from ddp.registries import Unusable

PROTOCOLS = {SyncKind.STEP: StepExchange, SyncKind.COLLECTIVE: CollectiveAverage, SyncKind.SNAPSHOT: SnapshotAverage}
OWN = {
    SyncKind.STEP: {"gradient_sync"},
    SyncKind.COLLECTIVE: {"average", "send_state", "load_state"},
    SyncKind.SNAPSHOT: {"snapshot", "apply"},
}
"""What tells a protocol from the others."""


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_has_the_protocols_of_its_entry_and_no_other(name: str) -> None:
    backend = load(name)
    for acts, methods in OWN.items():
        assert {method for method in methods if hasattr(backend, method)} == (
            methods if acts in BACKENDS[name].sync else set()
        )


def test_each_protocol_has_what_tells_it_from_the_others() -> None:
    for acts, methods in OWN.items():
        assert methods <= vars(PROTOCOLS[acts]).keys()
        assert all(methods.isdisjoint(vars(other)) for mark, other in PROTOCOLS.items() if mark is not acts)


def test_a_backend_that_lacks_what_its_entry_says_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("lacking")
    methods = {"__module__": "lacking", "join": None, "leave": None}
    module.Backend = type("Backend", (), methods)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lacking", module)
    monkeypatch.setitem(BACKENDS, "lacking", replace(BACKENDS["zero1"], module="lacking"))
    with pytest.raises(Unusable, match=r"backend lacking: lacking.Backend has no gradient_sync \(StepExchange\)"):
        load("lacking")


@pytest.mark.parametrize("name", BACKENDS)
def test_the_core_is_told_what_the_entry_says(name: str) -> None:
    world, spec = world_of(name, 2, 100, 10, 3, tolerate_loss=True), BACKENDS[name]
    assert (world.blocking, world.in_step) == (SyncKind.SNAPSHOT not in spec.sync, SyncKind.STEP in spec.sync)
    assert (world.tolerate_loss, world.indispensable == "") == (spec.averages, spec.averages)
