"""What rank 0 announces at the store, and what the other processes of a launcher make of it, start after start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from torch.distributed import HashStore

from ddp.core.errors import RankLost
from ddp.process import forkserver
from ddp.remote import head, launched_node
from ddp.remote import launched_process as processes
from ddp.remote.head import HeadNode
from ddp.remote.launched_process import LaunchedProcess, announced

KEY = b"k" * 32
LOOPBACK = "127.0.0.1"


def background(call: Callable[[], Any]) -> Future[Any]:
    """What `call` returns, in a thread."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


class Launcher:
    """Its processes in this one, at one store."""

    def __init__(self, name: str) -> None:
        self.name, self.store, self.heads = name, HashStore(), list[HeadNode]()

    def place(self, rank: int) -> LaunchedProcess:
        return LaunchedProcess(rank, 2, 0, 1, 2, "127.0.0.1:1", "machines", launcher=self.name)

    def head(self) -> HeadNode:
        self.heads.append(HeadNode(self.place(0), {}, "test"))
        return self.heads[-1]

    def count(self, rank: int) -> None:
        """Count a start of a process, which an earlier one did."""
        self.store.add(f"machines/starts/{rank}", 1)

    def serve(self) -> Future[int]:
        """Serve rank 0 in a thread, as rank 1's process does."""
        return background(lambda: launched_node.serve_rank0(self.place(1), KEY, {}, ()))


@pytest.fixture(params=["torchrun", "slurm"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    made = Launcher(request.param)
    monkeypatch.setenv("DDP_KEY", KEY.decode())
    for user in (head, launched_node):
        monkeypatch.setattr(user, "open_store", lambda place: made.store)
    monkeypatch.setattr(forkserver, "warm", lambda preload: None)
    monkeypatch.setattr(launched_node, "at_parents_end", lambda number: None)
    yield made
    for each in made.heads:
        if each._rendezvous is not None:
            each.rendezvous.close()


torchrun = pytest.mark.parametrize("launcher", ["torchrun"], indirect=True)
slurm = pytest.mark.parametrize("launcher", ["slurm"], indirect=True)


def wait_for(rank: int, there: HeadNode) -> None:
    there.rendezvous.peer(rank, 10.0)


@torchrun
@pytest.mark.parametrize("code", [130, None])
def test_what_an_earlier_start_has_announced_is_not_taken_for_this_ones(launcher: Launcher, code: int | None) -> None:
    """torchrun's store lasts when it starts the processes again: an exit code, or an address where nobody listens."""
    earlier = launcher.head()
    earlier.listen(LOOPBACK)
    earlier.rendezvous.close()
    if code is not None:
        earlier.dismiss(code)
    launcher.count(1)
    serving = launcher.serve()
    time.sleep(0.3)
    assert not serving.done()
    there = launcher.head()
    there.listen(LOOPBACK)
    wait_for(1, there)
    there.dismiss(3)
    there.rendezvous.close()
    assert serving.result(10.0) == 3


@torchrun
def test_an_exit_code_that_nothing_follows_counts(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the starts of a rank 0 that was killed before it had counted its own: it has fewer than the others."""
    monkeypatch.setattr(processes, "STALE_S", 0.2)
    launcher.head().dismiss(2)
    launcher.count(1)
    assert launcher.serve().result(10.0) == 2


@torchrun
def test_a_rank_0_that_failed_before_another_came_is_heard_at_once(launcher: Launcher) -> None:
    """Return at once from a setting that is refused: it held up torchrun for half a minute."""
    for start in range(2):
        launcher.head().dismiss(2 + start)
        assert launcher.serve().result(5.0) == 2 + start


@torchrun
def test_a_rank_0_that_fails_at_once_is_heard_at_once(launcher: Launcher) -> None:
    serving = launcher.serve()
    time.sleep(0.2)
    launcher.head().dismiss(2)
    assert serving.result(5.0) == 2


@slurm
def test_rank_0s_store_waits_for_who_has_not_heard_of_the_end(launcher: Launcher) -> None:
    """Reading where it listens is not hearing of the end: rank 1 sought rank 0 for a minute, and ended with another code."""
    there = launcher.head()
    there.listen(LOOPBACK)
    store = launcher.store
    assert "host" in announced(launcher.place(1), KEY, store)
    dismissing = background(lambda: there.dismiss(2))
    time.sleep(0.3)
    assert not dismissing.done()
    assert announced(launcher.place(1), KEY, store)["code"] == 2
    dismissing.result(5.0)


@slurm
def test_who_connects_after_the_end_hears_of_it(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    there = launcher.head()
    there.listen(LOOPBACK)
    address = announced(launcher.place(1), KEY, launcher.store)
    monkeypatch.setattr(launched_node, "announced", lambda *_: address)
    dismissing = background(lambda: there.dismiss(2))
    time.sleep(0.2)
    serving = launcher.serve()
    dismissing.result(5.0)
    there.rendezvous.close()
    assert serving.result(5.0) == 2


def test_what_was_not_announced_is_announced_by_the_next_run(launcher: Launcher) -> None:
    """The store did not answer. The next run took it for done, and waited for ranks that had heard of no address."""
    there, store = launcher.head(), launcher.store

    class Gone(HashStore):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe")

    launcher.store = Gone()
    with pytest.raises(RankLost, match="is gone"):
        there.listen(LOOPBACK)
    there._store = launcher.store = store
    there.listen(LOOPBACK)
    assert announced(launcher.place(1), KEY, store)["port"] == there.rendezvous.address[1]
