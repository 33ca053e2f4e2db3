"""Averages over emulated links take no less time than the links allow, whoever computes that time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.validate.emulation.emulated_links import least_s, quicker_than_links
from bench.validate.records.run_records import Records
from ddp.core.messages.events import Averaged
from ddp.core.messages.run_bounds import RunEnd
from ddp.core.network.link_costs import collective_s
from ddp.core.network.links import ALGORITHMS, parse

UNLIKE = ["0-3+4-7:20ms/10gbit", "0-3:0.05ms/100mbit", "4-7:0.05ms/100mbit"]


@given(
    ranks=st.integers(2, 9),
    size=st.integers(0, 10**7),
    number=st.integers(0, 99),
    algorithm=st.sampled_from(ALGORITHMS),
    words=st.sampled_from(
        [
            ["4ms/100mbit"],
            ["wan_1g_30ms/jitter10ms/loss1%"],
            ["1ms/1mbit/shared"],
            ["0-1:2ms/10mbit"],
            ["5ms/1gbit", "0:ib"],
            UNLIKE,
        ]
    ),
)
def test_no_collective_of_the_engine_is_quicker(
    ranks: int, size: int, number: int, algorithm: str, words: list[str]
) -> None:
    links = parse([*words, algorithm], seed=1)
    assert links is not None
    took = collective_s(links, tuple(range(ranks)), size, number)
    assert least_s(links, list(range(ranks)), size) <= took * (1 + 1e-9)


def test_messages_and_bytes_may_go_by_unlike_links() -> None:
    links = parse([*UNLIKE, "halving_doubling"], 8)
    assert links is not None
    assert least_s(links, list(range(8)), 10**6) <= collective_s(links, tuple(range(8)), 10**6)


@pytest.mark.parametrize(("elapsed", "named"), [(3.0, True), (None, False)])
def test_of_virtual_runs_of_earlier_versions_nothing_is_said(elapsed: float | None, named: bool) -> None:
    about: Any = SimpleNamespace(engine="virtual", backend="nccl", policy="cadence", world_size=2)
    known = Records(averaged=[Averaged(0.0, rank, 7, 1, 8, 0.001, 153_688, 0.0) for rank in (0, 1)])
    known.ends.append(RunEnd(9.0, "ok", None, (), 0, elapsed))
    assert bool(quicker_than_links(about, known, {"cluster": {"links": ["4ms/100mbit"]}})) is named


def test_of_plain_links_it_is_the_time_of_a_ring() -> None:
    links = parse(["4ms/100mbit"], 3)
    assert links is not None
    assert least_s(links, [0, 1, 2], 30_000) == pytest.approx(4 * 0.004 + 40_000 / 12.5e6)


def said(seconds: tuple[float, float], config: Sequence[str] = ("4ms/100mbit",), **more: Any) -> str:
    about: Any = SimpleNamespace(
        **({"engine": "elche", "backend": "nccl", "policy": "cadence", "world_size": 2} | more)
    )
    known = Records(averaged=[Averaged(0.0, rank, 7, 1, 8, took, 153_688, 0.0) for rank, took in enumerate(seconds)])
    return quicker_than_links(about, known, {"cluster": {"links": config}})


def test_an_average_that_is_too_quick_is_named() -> None:
    assert said((0.9, 0.0204)) == ""
    assert "the average of round 7 took 16.6 ms, but 153688 bytes over these links need 20.3 ms" in said((0.9, 0.0166))


@pytest.mark.parametrize(
    "more",
    [
        {"engine": "graph"},
        {"backend": "cpu"},
        {"policy": "sync"},
        {"world_size": 3},
        {"engine": "solo"},
        {"config": []},
    ],
)
def test_of_other_runs_nothing_is_said(more: dict[str, Any]) -> None:
    """Snapshots travel as messages; gradients overlap with the backward pass; a rank may have taken what others averaged."""
    assert said((0.9, 0.0001), **more) == ""
