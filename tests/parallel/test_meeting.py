"""What a rank takes from the store where ranks meet, which anybody may have written."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch.distributed import HashStore

from ddp.comm import store_exchange
from ddp.comm.store_exchange import StoreExchange, _boot, _common_folder, _listen, fresh_store, open_store
from ddp.core.errors import RankLost


class Told(StoreExchange):
    """Everybody says the same as this rank, but rank 0 offers a folder."""

    def __init__(self, offer: str) -> None:
        self._offers = [offer]

    def exchange(self, text: str) -> list[str]:
        return [self._offers.pop()] if self._offers else [text]


def seen(folder: Path, token: str = "word", boot: str | None = None) -> bool:
    with ExitStack() as held:
        return _common_folder(Told(f"{folder}\n{token}\n{_boot() if boot is None else boot}"), 1, held)[0]


def test_memory_is_shared_in_a_folder_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the store could name one of theirs, and read and write what ranks reduce."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    assert not seen(folder)
    (folder / "token").write_text("word")
    assert seen(folder)
    assert not seen(folder, "another")
    assert not seen(folder, boot="another"), "another host sees the folder, such as by NFS"
    (tmp_path / "name").symlink_to(folder)
    assert not seen(tmp_path / "name")
    folder.chmod(0o755)
    assert not seen(folder)
    folder.chmod(0o700)
    (folder / "token").unlink()
    os.mkfifo(folder / "token")
    assert not seen(folder), "it would wait there for ever"
    (folder / "token").unlink()
    (folder / "token").write_text("word")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert not seen(folder)


def test_rank_0_refuses_a_name_of_its_own_that_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts has one: others waited for five minutes for a store that nobody reached."""
    real, answers = socket.getaddrinfo, ["127.0.1.1"]

    def resolved(host: str, *about: object, **more: object) -> list[object]:
        names = answers if host == "node1" else [host]
        return [found for name in names for found in real(name, *about, **more)]  # type: ignore[call-overload]  # as getaddrinfo is called

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(ValueError, match=r"MASTER_ADDR=node1 is 127\.0\.1\.1 on rank 0's host .*: give the address"):
        _listen("node1", 0)
    answers[:] = ["203.0.113.1", "127.0.0.1"]  # the first one is no address of this host
    socket.socket(fileno=_listen("node1", 0)).close()
    answers[:] = ["127.0.1.1"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    socket.socket(fileno=_listen("node1", 0)).close()


class StoppedStore(HashStore):
    """As of a process that was stopped: it takes what is said, and answers nothing."""

    def add(self, key: str, amount: int) -> int:
        raise AssertionError(threading.Event().wait(20.0))

    def wait(self, *_: object) -> None:
        threading.Event().wait(20.0)

    def check(self, keys: list[str]) -> bool:
        return threading.Event().wait(20.0)


def test_nobody_waits_beyond_the_limit_for_a_store_whose_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's client does, for ever: the others hung as long as rank 0 was stopped."""
    monkeypatch.setattr(store_exchange, "ANSWER_S", 0.1)
    texts, late = StoreExchange(StoppedStore(), 1, 2, 0.1), "the store did not answer within"
    with pytest.raises(RankLost, match=rf"rank 0 did not come within 0\.1 s.*{late} 0\.2 s"):
        texts.exchange("here")
    assert texts.missing(0.1) == [0]
    with pytest.raises(RankLost, match=late):
        fresh_store(StoppedStore(), 1, 2)
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,  # the system takes the connection
        pytest.raises(RankLost, match=f"rank 1 finds no store at .*{late}"),
    ):
        open_store(1, 2, 0.1, deaf.getsockname())
