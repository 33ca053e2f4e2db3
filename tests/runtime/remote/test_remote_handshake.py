"""The handshake: who is believed, by when, and where the key comes from. Sockets on loopback, no processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddp.remote import handshake
from ddp.remote.handshake import MAGIC, NONCE, NoProof, introduce, shared_key, welcome
from ddp.remote.wire import LinkLost
from tests.runtime.remote.loopback import KEY, RUN


def shaken(lines: Any, key: bytes = KEY, run: bytes = RUN) -> tuple[Any, Any]:
    """What becomes of both sides: a wire or an error."""
    became: list[Any] = [None, None]

    def side(place: int, act: Callable[[], Any]) -> None:
        try:
            became[place] = act()
        except LinkLost as error:
            became[place] = error
            lines[place].close()

    thread = threading.Thread(target=side, args=(1, lambda: introduce(lines[1], key, run)))
    thread.start()
    side(0, lambda: welcome(lines[0], KEY, RUN))
    thread.join()
    return became[0], became[1]


def test_two_with_one_key_believe_each_other(lines: Any) -> None:
    ours, theirs = shaken(lines)
    ours.send(b"m", b"down")
    theirs.send(b"m", b"up")
    assert (theirs.receive(), ours.receive()) == ((b"m", b"down"), (b"m", b"up"))


@pytest.mark.parametrize(("key", "run"), [(b"K" * 32, RUN), (KEY, b"R" * 16)])
def test_neither_believes_one_with_another_key_or_of_another_run(lines: Any, key: bytes, run: bytes) -> None:
    ours, theirs = shaken(lines, key, run)
    assert isinstance(ours, NoProof)
    assert isinstance(theirs, NoProof)
    assert "DDP_KEY" in str(theirs)


def test_a_rank_does_not_believe_a_coordinator_without_the_key(lines: Any) -> None:
    def pretend() -> None:
        lines[0].sendall(MAGIC + b"n" * NONCE)
        lines[0].recv(1000)
        lines[0].sendall(b"p" * 32)

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(NoProof):
        introduce(lines[1], KEY, RUN)
    thread.join()


def test_what_was_overheard_opens_nothing() -> None:
    """The bytes of a rank that was believed, sent again."""
    heard: list[bytes] = []
    for replay in (False, True):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if not replay:
                thread = threading.Thread(target=_eavesdrop, args=(theirs, heard))
            else:
                thread = threading.Thread(target=theirs.sendall, args=(heard[0],))
            thread.start()
            if replay:
                with pytest.raises(NoProof):
                    welcome(ours, KEY, RUN)
            else:
                with suppress(OSError):  # no TCP, and no need of it
                    welcome(ours, KEY, RUN)
            thread.join()


def _eavesdrop(line: socket.socket, heard: list[bytes]) -> None:
    between, end = socket.socketpair()
    with between, end:
        honest = threading.Thread(target=lambda: _quietly(lambda: introduce(end, KEY, RUN)))
        honest.start()
        between.sendall(line.recv(len(MAGIC) + NONCE))
        heard.append(between.recv(1000))
        line.sendall(heard[0])
        between.sendall(line.recv(1000))
        honest.join()


def _quietly(act: Callable[[], object]) -> None:
    with suppress(OSError):
        act()


def test_a_handshake_has_one_deadline_for_all_of_it(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PATIENCE_S", 0.3)
    stop = threading.Event()

    def drip() -> None:
        for byte in MAGIC:
            if stop.wait(0.1):
                return
            lines[1].send(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(LinkLost, match=r"took over 0\.3 s"):
        welcome(lines[0], KEY, RUN)
    stop.set()
    dripping.join()


def test_a_coordinator_that_is_slow_is_not_one_with_another_key(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is worth another try."""
    monkeypatch.setattr(handshake, "PATIENCE_S", 0.2)
    lines[0].sendall(MAGIC + b"n" * NONCE)
    with pytest.raises(LinkLost, match=r"took over 0\.2 s") as caught:
        introduce(lines[1], KEY, RUN)
    assert not isinstance(caught.value, NoProof)


def test_where_the_key_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"s" * 32 + b"\n")
    path.chmod(0o600)
    assert shared_key({"DDP_KEY_FILE": str(path), "DDP_KEY": "x" * 40}) == b"s" * 32
    assert shared_key({"DDP_KEY": "x" * 40}) == b"x" * 40
    assert shared_key({}) is None
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        shared_key({"DDP_KEY_FILE": str(path)})
    for wrong in ({"DDP_KEY": "short"}, {"DDP_KEY_FILE": str(tmp_path)}, {"DDP_KEY_FILE": str(tmp_path / "none")}):
        with pytest.raises(ValueError, match="DDP_KEY"):
            shared_key(wrong)
