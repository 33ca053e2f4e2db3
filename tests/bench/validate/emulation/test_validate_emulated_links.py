"""Averages over emulated links take no less time than the links allow, whoever computes that time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.validate.emulation.emulated_links import other_than_links
from bench.validate.emulation.link_seconds import Needed
from bench.validate.emulation.link_words import PRESETS, read_links
from bench.validate.records.run_records import Records
from ddp.core.messages.event_parts import SketchGroup
from ddp.core.messages.events import Averaged
from ddp.core.messages.run_bounds import RunEnd
from ddp.core.network.link_costs import collective_s
from ddp.core.network.links import ALGORITHMS, link, parse

UNLIKE = ["0-3+4-7:20ms/10gbit", "0-3:0.05ms/100mbit", "4-7:0.05ms/100mbit"]


@given(
    ranks=st.integers(2, 9),
    size=st.integers(0, 10**7),
    number=st.integers(0, 99),
    algorithm=st.sampled_from(ALGORITHMS),
    part=st.sampled_from([0.5, 1.0]),
    words=st.sampled_from(
        [
            ["4ms/100mbit"],
            ["wan_1g_30ms/jitter10ms/loss1%"],
            ["home_100m/loss20%/shared", "3-8:1ms/9kbit/jitter0.5ms"],
            ["1ms/1mbit/shared"],
            ["0-1:2ms/10mbit"],
            ["5ms/1gbit", "0:ib"],
            UNLIKE,
        ]
    ),
)
def test_no_collective_of_the_engine_is_quicker_or_slower(
    ranks: int, size: int, number: int, algorithm: str, part: float, words: list[str]
) -> None:
    links, members = parse([*words, algorithm], seed=1), tuple(range(ranks))
    assert links is not None
    took, needed = collective_s(links, members, size, number, part), seconds([*words, algorithm], ranks, size, part)
    assert needed.least * (1 - 1e-9) <= took <= needed.most * (1 + 1e-9)


def seconds(words: Sequence[str], ranks: int, size: int, part: float = 1.0) -> Needed:
    return Needed.all_reduce(read_links(words), tuple(range(ranks)), size, part)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_mean_of_collectives_is_that_of_the_engine(algorithm: str) -> None:
    words = ["10ms/100mbit/jitter5ms/loss2%/shared", algorithm]
    links = parse(words, 5, seed=1)
    assert links is not None
    took = [collective_s(links, tuple(range(5)), 10_000, number) for number in range(4000)]
    needed = seconds(words, 5, 10_000)
    assert fmean(took) == pytest.approx(needed.mean, abs=4 * (needed.variance / len(took)) ** 0.5)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("more", ["", "/2.5e-1gbit/jitter2us/loss2%/shared"])
def test_links_are_read_as_the_engine_reads_them(name: str, more: str) -> None:
    mine, theirs = read_links(f"0-3_8+4:{name}{more}").links[0], link(name + more)
    assert mine.groups == (((0, 3), (8, 8)), ((4, 4),))
    assert mine.shared is theirs.shared
    values = [(mine.latency, theirs.latency_s), (mine.jitter, theirs.jitter_s), (mine.bandwidth, theirs.bandwidth)]
    for own, other in (*values, (mine.loss, theirs.loss), (mine.again, theirs.again_s), (mine.rate, theirs.rate)):
        assert own == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize(("elapsed", "named"), [(3.0, True), (None, False)])
def test_of_virtual_runs_of_earlier_versions_nothing_is_said(elapsed: float | None, named: bool) -> None:
    about: Any = SimpleNamespace(engine="virtual", backend="nccl", policy="cadence", world_size=2)
    known = Records(averaged=[Averaged(0.0, rank, 7, 1, 8, 0.001, 153_688, 0.0) for rank in (0, 1)])
    known.ends.append(RunEnd(9.0, "ok", None, (), 0, elapsed))
    assert bool(other_than_links(about, known, {"cluster": {"links": ["4ms/100mbit"]}})) is named


def test_of_plain_links_it_is_the_time_of_a_ring() -> None:
    assert seconds(["4ms/100mbit"], 3, 30_000).least == pytest.approx(4 * 0.004 + 40_000 / 12.5e6)


def metrics(**more: Any) -> Any:
    about = {"engine": "elche", "backend": "nccl", "policy": "cadence", "world_size": 2, "scripted_faults": []}
    return SimpleNamespace(**(about | more))


def said(seconds: tuple[float, float], config: Sequence[str] = ("4ms/100mbit",), **more: Any) -> str:
    about = metrics(**more)
    known = Records(averaged=[Averaged(0.0, rank, 7, 1, 8, took, 153_688, 0.0) for rank, took in enumerate(seconds)])
    return other_than_links(about, known, {"cluster": {"links": config}})


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
    """Snapshots travel as messages; a rank may have taken what others averaged."""
    assert said((0.9, 0.0001), **more) == ""


def said_of(
    took: Sequence[float], words: Sequence[str] = ("30ms/100mbit",), kind: str = "collectives", **more: Any
) -> str:
    """Of collectives of a run in which gradients are averaged in each step. One rank begins 5 s before the other."""
    known = Records()
    for number, seconds in enumerate(took):
        parts = [(rank, 10.0 * number - 5.0 * rank, 10.0 * number + seconds, 1_000) for rank in (0, 1)]
        getattr(known, kind)[number] = parts
    return other_than_links(metrics(policy="sync", **more), known, {"cluster": {"links": words}})


@pytest.mark.parametrize("kind", ["collectives", "hidden"])
@pytest.mark.parametrize(
    ("backend", "seconds", "named"),
    [("nccl", 0.0601, False), ("nccl", 0.0301, True), ("zero2", 0.0301, False), ("zero2", 0.003, True)],
)
def test_a_collective_within_steps_that_is_too_quick_is_named(
    kind: str, backend: str, seconds: float, named: bool
) -> None:
    """Links that cost nothing in steps passed."""
    found = said_of([0.5] * 9 + [seconds], kind=kind, backend=backend)
    assert ("but 1000 bytes over these links need" in found) is named, found


@pytest.mark.parametrize(
    ("took", "more", "named"),
    [
        ([0.19] * 5, {}, True),
        ([0.19] * 5 + [0.07], {}, False),
        ([0.15] * 50, {}, False),
        ([0.19] * 4, {}, False),
        ([0.19] * 5, {"scripted_faults": ["1@9:link*3"]}, False),
        ([0.19] * 5, {"words": ["30ms/100mbit/jitter25ms"]}, False),
        ([0.19] * 5, {"words": ["30ms/100mbit/loss1%"]}, False),
        ([0.19] * 5, {"words": ["2ms/100mbit"]}, False),
        ([0.19] * 5, {"world_size": 3}, False),
    ],
)
def test_links_that_are_too_slow_are_named(
    monkeypatch: pytest.MonkeyPatch, took: list[float], more: dict[str, Any], named: bool
) -> None:
    """Links three times as slow as set passed. On a busy machine a few collectives take long, but not all."""
    monkeypatch.setattr(Records, "groups", (SketchGroup("weight", "parameters", 10, "float32", True),))
    found = said_of(took, **more)
    line = "each of 5 collectives was too slow: one took 190 ms, where these links need 60.1 ms (cluster.links)"
    assert found == (line if named else "")
