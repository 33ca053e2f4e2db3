"""`torchft`: recovery of its ranks, what it refuses, and the message where it is not installed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.config.hydra_errors import unusable
from ddp.backends import BACKENDS
from ddp.core.errors import RankFailed
from ddp.core.settings.averaging import Averaging
from ddp.settings import known
from tests.runtime.conftest import Play
from tests.runtime.losses.test_rejoin import returns

installed = pytest.mark.skipif("torchft" not in BACKENDS, reason="torchft is not installed")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS.absent, "elsewhere", "package")
    needed = "backend elsewhere needs package, which is not installed: pip install 'elche-bench[package]'"
    assert unusable("mode", "elsewhere_sync") == unusable("backend", "elsewhere") == needed
    assert unusable("mode", "else_sync") is None
    with pytest.raises(ValueError, match="backend elsewhere needs package"):
        known("backend", "elsewhere", BACKENDS)


@installed
@pytest.mark.parametrize(("policy", "outer"), [("sync", "none"), ("cadence", "none"), ("cadence", "nesterov")])
def test_a_rank_that_was_killed_comes_back(play: Play, policy: str, outer: str) -> None:
    averaging = Averaging(outer=outer)
    played = returns(
        play, policy, "torchft", "1@5:crash", epochs=15, speeds=(0.05,) * 3, averaging=averaging, deadline_s=20.0
    )
    assert len(played.digests) == 1


@installed
def test_averages_that_torchft_does_not_have_are_refused(play: Play) -> None:
    with pytest.raises(RankFailed, match=r"torchft averages parameters whole: leave out averaging\.elastic"):
        play("cadence", "torchft", averaging=Averaging(elastic=0.5))
    with pytest.raises(RankFailed, match="torchft is for ranks on CPUs of one host"):
        play("sync", "torchft", transport="gloo")


@installed
def test_a_collective_that_breaks_in_the_backward_pass_does_not_end_the_rank() -> None:
    """torchft's own hook does, which ended every survivor of a rank that died in a step's collective."""
    from torchft import DistributedDataParallel

    from ddp.backends.torchft import ManagedModule

    work = SimpleNamespace(wait=lambda: False, get_future=lambda: SimpleNamespace(_fut=None))
    bucket = SimpleNamespace(buffer=lambda: "the gradients")
    manager = SimpleNamespace(allreduce=lambda tensor: work, errored=lambda: "a peer is gone")
    with pytest.raises(AssertionError):
        DistributedDataParallel._comm_hook(manager, bucket)
    assert ManagedModule._comm_hook(manager, bucket).wait() == "the gradients"
    manager.errored = lambda: None
    with pytest.raises(AssertionError):
        ManagedModule._comm_hook(manager, bucket)
