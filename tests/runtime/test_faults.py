"""What happens when a rank does not do its duty: named, bounded in time, no process left (the fixture looks)."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

from ddp.core.errors import Diverged, EngineError, RankFailed, RankLost
from ddp.core.policies import POLICIES
from ddp.runtime.backends import BACKENDS
from tests.runtime import toy
from tests.runtime.conftest import Play

CELLS = [(policy, backend) for policy in POLICIES for backend in BACKENDS]


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_an_exception_is_raised_once_with_rank_and_traceback(play: Play, policy: str, backend: str) -> None:
    with pytest.raises(RankFailed, match=r"rank [01] failed: RuntimeError: the toy is broken") as caught:
        play(policy, backend, partial(toy.troubled, "raise"))
    assert "toy.py" in caught.value.traceback


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_a_killed_rank_is_named(play: Play, policy: str, backend: str) -> None:
    began = time.monotonic()
    with pytest.raises(RankLost, match=r"rank [01]: its process is gone \(killed by signal 9\)"):
        play(policy, backend, partial(toy.troubled, "kill"))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_rank_is_found_by_its_silence(play: Play, backend: str) -> None:
    with pytest.raises(EngineError, match=r"silent for|failed"):
        play("cadence", backend, partial(toy.troubled, "stop"), deadline_s=2.0)


def test_divergence_is_not_a_crash(play: Play) -> None:
    for world_size in (1, 2):
        with pytest.raises(Diverged, match="not finite"):
            play("cadence", "nccl", partial(toy.troubled, "nan"), world_size=world_size)


def test_a_failing_solo_run_names_rank_0(play: Play) -> None:
    with pytest.raises(RankFailed, match="rank 0 failed: RuntimeError: the toy is broken"):
        play("sync", "nccl", partial(toy.troubled, "raise"), world_size=1)


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_an_interrupt_stops_everything_within_three_seconds(play: Play, policy: str, backend: str) -> None:
    pressed: list[float] = []

    def press() -> None:
        time.sleep(1.5)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        play(policy, backend, epochs=100_000)
    assert time.monotonic() - pressed[0] < 3.0
