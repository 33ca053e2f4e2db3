"""Ranks in threads of this process: the same bits as in processes, one at a time, and nothing is left of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.comm.transports.base import MAX, ExchangeBroken, TransportConfig
from ddp.comm.transports.threads import ThreadGroup, Transport
from ddp.core.errors import Diverged, RankFailed
from ddp.core.messages.events import AverageFailed, Lost, Merged, Tick
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import parse
from ddp.engine.in_process import InProcessRanks
from ddp.replica.task import Job, Task
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import every
from tests.spread import spread
from tests.threads import no_thread_left

SYNCHRONOUS = ("nccl", "cpu", "zero1", "zero2", "zero3")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with no_thread_left("rank-", "heart"):
        yield


def dropping() -> Task:
    """A model that draws, with statistics of its batches, momentum and a last batch that is smaller."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, 2))

    return replace(toy.task(optimizer="AdamW", lr=0.01, samples=101), model=net)


@pytest.mark.parametrize(("name", "size"), every(2, spread(SYNCHRONOUS, [2, 3])))
def test_the_bits_are_those_of_processes(play: Play, monkeypatch: pytest.MonkeyPatch, name: str, size: int) -> None:
    """Whoever runs when: sums are in the order of ranks, and each rank has its own random numbers."""
    apart = play("sync", name, dropping, world_size=size)
    monkeypatch.setattr("ddp.engine.elche.RankProcesses", InProcessRanks)
    assert play("sync", name, dropping, world_size=size).digests == apart.digests
    assert len(apart.digests) == 1


@pytest.mark.parametrize(("policy", "backend"), [("cadence", "cpu"), ("async", "nccl")])
def test_records_are_those_of_any_run(play: Play, in_process: None, policy: str, backend: str) -> None:
    played = play(policy, backend, world_size=3)
    spans = sorted(span for event in played.of(Merged) if event.epoch == 1 for span in event.spans)
    assert (spans[0][0], spans[-1][1]) == (0, toy.SAMPLES)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    assert not played.of(Tick), "nobody has to wait for the clock"
    assert len(played.digests) == 1


def test_a_rank_that_raises_is_gone_on_without(play: Play, in_process: None) -> None:
    played = play("cadence", "nccl", faults=(parse("1@5:raise"),), world_size=3)
    assert len(played.digests) == 1
    assert played.of(AverageFailed) or not played.of(Lost)
    assert {event.rank for event in played.of(Merged)} >= {0, 2}


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_what_ends_a_run_ends_all_threads(play: Play, in_process: None, tmp_path: Path, kind: str) -> None:
    with pytest.raises(RankFailed if kind == "raise" else Diverged):
        play("sync", "nccl", partial(toy.troubled, kind, tmp_path), tolerate_loss=False)


def test_faults_that_are_done_to_processes_are_refused(tmp_path: Path) -> None:
    job = Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "nccl", tmp_path, faults=(parse("1@5:crash"),))
    with pytest.raises(ValueError, match="cannot have faults of the kinds crash, stall"):
        InProcessRanks(job)


def transports(size: int) -> list[Transport]:
    def forever(until: Any) -> None:
        """Nobody else runs while this rank pauses."""

    group = ThreadGroup([forever] * size)
    made = [Transport(group, TransportConfig(Path(), rank, size, torch.device("cpu"), 10.0)) for rank in range(size)]
    for transport in made:
        transport.join(range(size), 0)
    return made


def test_who_comes_last_does_the_collective() -> None:
    first, last = transports(2)
    mine, theirs = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 3.0])
    with pytest.raises(ExchangeBroken):  # it returns from its pause, and nothing is done
        first.all_reduce(mine, MAX)
    last.all_reduce(theirs, MAX)
    assert mine.tolist() == theirs.tolist() == [2.0, 5.0]


def test_ranks_at_different_places_are_told_so() -> None:
    first, last = transports(2)
    with pytest.raises(ExchangeBroken):
        first.all_reduce(torch.ones(3))
    with pytest.raises(ExchangeBroken, match="rank 1 reduces 4 x float32 to their sum, others 3 x float32"):
        last.all_reduce(torch.ones(4))


def test_a_group_that_was_left_is_none() -> None:
    first, last = transports(2)
    first.leave()
    with pytest.raises(ExchangeBroken, match="there is no group"):
        last.all_reduce(torch.ones(3))
    for transport in (first, last):
        transport.join((0, 1), 1)
    values: list[Tensor] = [torch.ones(3), torch.ones(3)]
    with pytest.raises(ExchangeBroken):
        first.all_reduce(values[0])
    last.all_reduce(values[1])
    assert values[0].tolist() == [2.0] * 3
