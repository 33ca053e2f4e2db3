"""What a rank takes from the store where ranks meet, which anybody may have written."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddp.comm.store_exchange import StoreExchange, _common_folder


class Told(StoreExchange):
    """Everybody says the same as this rank, but rank 0 offers a folder."""

    def __init__(self, offer: str) -> None:
        self._offers = [offer]

    def exchange(self, text: str) -> list[str]:
        return [self._offers.pop()] if self._offers else [text]


def seen(folder: Path, token: str = "word") -> bool:
    with ExitStack() as held:
        return _common_folder(Told(f"{folder}\n{token}"), 1, held)[0]


def test_memory_is_shared_in_a_folder_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the store could name one of theirs, and read and write what ranks reduce."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    assert not seen(folder)
    (folder / "token").write_text("word")
    assert seen(folder)
    assert not seen(folder, "another")
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
