"""What ranks send in virtual time, and how long it takes: as in real runs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import nn

from ddp.core.messages.events import Progress, RoundClosed
from ddp.core.network.link_costs import meeting_s
from ddp.core.network.links import parse
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.virtual_time import VirtualTime
from ddp.replica.task import Task
from ddp.virtual import engine
from tests.runtime import toy
from tests.runtime.conftest import Play, Played

LINKS = parse(["1ms/1mbit"], 2)


def frozen(norm: bool) -> Task:
    """The toy's task, with a large layer that is not trained."""

    def net() -> nn.Module:
        first = nn.Linear(6, 500).requires_grad_(False)
        return nn.Sequential(first, nn.Linear(500, 12), *([nn.BatchNorm1d(12)] if norm else []), nn.Linear(12, 2))

    return replace(toy.task(), model=net)


def exchanges(played: Played) -> tuple[set[int], float, int]:
    """The bytes of the ranks' exchanges, the seconds of the shortest, which waits for nobody, and the number of a rank's."""
    lines = [json.loads(line) for path in played.job.scratch.glob("slices-*") for line in path.read_text().splitlines()]
    own = [line for line in lines if line.get("kind") == "exchange"]
    return {line["bytes"] for line in own}, min(line["seconds"] for line in own), len(own) // 2


@pytest.mark.parametrize("norm", [False, True])
def test_steps_send_the_gradients_of_what_is_trained(play: Play, norm: bool) -> None:
    """They sent whole replicas, which failed the check `volume`, and took that time over links."""
    task = partial(frozen, norm)
    real, mine = (play("sync", "nccl", task, epochs=1, **more) for more in ({}, {"engine": engine, "links": LINKS}))
    size, (sizes, seconds, _) = max(exchanges(real)[0]), exchanges(mine)
    assert sizes == {size}
    assert LINKS is not None
    assert seconds == pytest.approx(meeting_s(LINKS, (0, 1), size, 1))


@pytest.mark.parametrize(
    ("norm", "wire"), [(False, "float64"), (True, "float64"), (False, "float32"), (True, "bfloat16")]
)
def test_an_average_takes_as_many_collectives_as_a_real_one(play: Play, norm: bool, wire: str) -> None:
    """Counters, and the weight beside a narrow wire, go in collectives of their own, of which each has its latency."""
    more: dict[str, Any] = {"averaging": Averaging(wire=wire), "epochs": 1}
    real = play("cadence", "nccl", partial(frozen, norm), **more)
    mine = play("cadence", "nccl", partial(frozen, norm), engine=engine, links=LINKS, **more)
    count, rest = divmod(exchanges(real)[2], len(real.of(RoundClosed)))
    ((size,), seconds, _) = exchanges(mine)
    assert rest == 0
    assert LINKS is not None
    assert seconds == pytest.approx(meeting_s(LINKS, (0, 1), size, count))


@pytest.mark.parametrize("path", ["sequential", "vectorised"])
def test_steps_report_no_waiting_for_other_ranks_as_work(play: Play, path: str) -> None:
    """A rank four times as fast reported as much work as the slow one, so that its efficiency was far too high."""
    virtual = VirtualTime(path=path, step_s=0.1)
    played = play("sync", "nccl", engine=engine, epochs=1, speeds=(1.0, 0.25), virtual=virtual, batch_size=7)
    busy = [sum(event.busy_s for event in played.of(Progress) if event.rank == rank) for rank in range(2)]
    assert busy == pytest.approx([0.1 * 14.5, 0.4 * 14.5], rel=0.01)
