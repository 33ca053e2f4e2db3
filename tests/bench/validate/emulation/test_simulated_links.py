"""Runs over links that an engine emulates wrongly are named, and no others: simulated runs, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.validate.emulation.emulated_links import other_than_links
from bench.validate.records.run_records import Records
from ddp.backends import world_of
from ddp.core.messages.commands import Apply, Average, Reduce
from ddp.core.messages.event_parts import SketchGroup
from ddp.core.messages.events import Averaged, Ready, Reduced
from ddp.core.messages.run_bounds import RunEnd
from ddp.core.network import link_costs
from ddp.core.network import links as engine_links
from ddp.core.network.link_costs import Deliveries
from ddp.core.network.links import ALGORITHMS, parse
from ddp.core.policies import POLICIES
from ddp.sim import Costs, simulate
from tests.policies import accepted

ELEMENTS = 19_210
SIZE = 8 * (ELEMENTS + 1)
FOUR = "10ms/100mbit/shared/loss5%/jitter5ms"
Patch = pytest.MonkeyPatch


def judged(
    words: list[str],
    backend: str = "nccl",
    policy: str = "cadence",
    ranks: int = 4,
    seed: int = 0,
    engine: str = "virtual",
) -> str:
    """Return what is said of a run in virtual time. A rank's answer has the bytes of both ways, its snapshot half of
    them."""
    known = Records()

    def measured(rank: int, kind: str, start: float, stop: float, seq: int) -> None:
        if kind == "exchange":
            known.collectives[seq].append((rank, start, stop, SIZE))

    def listen(at: float, record: Any) -> None:
        match record:
            case Average() | Apply():
                known.work.append((at, record))
            case Reduce():
                known.reduces.append(record)
            case Reduced():
                known.reduced.append(replace(record, at=at))
            case Averaged():
                known.averaged.append(replace(record, at=at, bytes=record.bytes * (2 if backend == "cpu" else 1)))
            case Ready():
                group = SketchGroup("weight", "parameters", ELEMENTS, "float32", True)
                known.ready.append(replace(record, sketched=(group,)))

    costs = Costs(lambda rank, step: 0.01 * (1 + rank / 9), links=parse(words, ranks, seed), bytes=SIZE, wire_s=0.001)
    world = world_of(backend, ranks, 40 * 8 * ranks, 8, 1, deadline_s=500.0)
    chosen = POLICIES[policy](**accepted(policy, anchor=4, max_anchor=4))
    assert simulate(chosen, world, costs=costs, listen=listen, measured=measured, keep=False).status == "ok"
    known.ends.append(RunEnd(9.0, "ok", None, (), 0, 3.0))
    about: Any = {"engine": engine, "backend": backend, "policy": policy, "world_size": ranks, "scripted_faults": []}
    metrics: Any = SimpleNamespace(**about)
    return other_than_links(metrics, known, {"cluster": {"links": words}})


def unshared(patch: Patch) -> None:
    patch.setattr(link_costs, "_rate", lambda link, messages: link.rate)


def as_halving(patch: Patch) -> None:
    right = link_costs._doubling
    patch.setattr(link_costs, "_doubling", lambda links, members, halving: right(links, members, True))


def without_losses(patch: Patch) -> None:
    right = link_costs._delay
    patch.setattr(link_costs, "_delay", lambda link, *rest: right(replace(link, loss=0.0), *rest))


def without_jitter(patch: Patch) -> None:
    right = link_costs._delay
    patch.setattr(link_costs, "_delay", lambda link, *rest: right(replace(link, jitter_s=0.0), *rest))


def eighth(patch: Patch) -> None:
    right = Deliveries.due
    patch.setattr(Deliveries, "due", lambda self, rank, size, way, at: right(self, rank, size / 8, way, at))


def alone(patch: Patch) -> None:
    """Each rank has a shared link for itself."""
    right = Deliveries.__init__

    def made(self: Deliveries, links: engine_links.Links) -> None:
        rules = tuple(replace(rule, link=replace(rule.link, shared=False)) for rule in links.rules)
        right(self, replace(links, rules=rules))

    patch.setattr(Deliveries, "__init__", made)


def bytes_for_bits(patch: Patch) -> None:
    """In the judge's process, too."""
    patch.setattr(engine_links, "_BITS", {unit: 8 * bits for unit, bits in engine_links._BITS.items()})


def slower(patch: Patch) -> None:
    right = link_costs._delay
    patch.setattr(link_costs, "_delay", lambda *rest: 1.1 * right(*rest))


def forget() -> None:
    link_costs._rounds.cache_clear()
    engine_links.link.cache_clear()


@pytest.mark.parametrize(
    ("defect", "words", "more"),
    [
        (unshared, [FOUR], {}),
        (unshared, ["5ms/10mbit/shared"], {"ranks": 3, "engine": "elche"}),
        (unshared, ["0-1+2-3:5ms/10mbit/shared"], {}),
        (as_halving, ["10ms/20mbit", "tree"], {}),
        (without_losses, [FOUR], {}),
        (without_losses, ["10ms/100mbit/loss3%"], {"policy": "sync"}),
        (without_jitter, ["10ms/100mbit/jitter9ms"], {}),
        (eighth, ["10ms/100mbit"], {"backend": "cpu", "policy": "async"}),
        (eighth, ["10ms/100mbit/jitter2ms"], {"backend": "cpu"}),
        (alone, ["1ms/10mbit/shared"], {"backend": "cpu"}),
        (bytes_for_bits, ["10ms/20mbit"], {}),
        (bytes_for_bits, ["15ms/20mbit/jitter5ms", "1-2:3ms/4mbit"], {"backend": "cpu"}),
        (slower, ["10ms/20mbit"], {}),
    ],
)
def test_links_that_are_emulated_wrongly_are_named(
    monkeypatch: Patch, defect: Callable[[Patch], None], words: list[str], more: dict[str, Any]
) -> None:
    """All of these passed."""
    forget()
    assert judged(words, **more) == ""
    with monkeypatch.context() as patch:
        forget()
        defect(patch)
        assert "(cluster.links)" in judged(words, **more)
    forget()


@settings(deadline=None)
@given(
    words=st.lists(
        st.sampled_from(
            [
                FOUR,
                "wan_1g_30ms",
                "home_100m/shared",
                "20ms/8mbit/jitter20ms/loss50%",
                "0-1:1ms/1mbit/shared",
                "0+1_2:ib",
            ]
        ),
        min_size=1,
        max_size=3,
    ),
    algorithm=st.sampled_from(ALGORITHMS),
    backend=st.sampled_from(["nccl", "cpu"]),
    policy=st.sampled_from(sorted(POLICIES)),
    ranks=st.integers(3, 9),
    seed=st.integers(0, 10**6),
)
def test_of_links_as_set_nothing_is_said(
    words: list[str], algorithm: str, backend: str, policy: str, ranks: int, seed: int
) -> None:
    assert judged([*words, algorithm], backend, policy, ranks, seed) == ""
