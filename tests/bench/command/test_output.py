"""What is printed, whoever reads it: a reader that leaves, an encoding that has few signs, errors without a file."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from bench import __main__ as entry
from bench.base.usage import UsageError, usage
from bench.command import cli


def test_an_error_without_a_file_names_none() -> None:
    for error, told in (
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError("just so"), "just so"),
        (FileNotFoundError(2, "No such file or directory", "x"), "No such file or directory: x"),
    ):
        with pytest.raises(UsageError) as caught, usage():
            raise error
        assert str(caught.value) == told


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_neither_a_reader_that_leaves_nor_a_full_disk_is_a_mistake_of_the_users(number: int) -> None:
    with pytest.raises(OSError, match="it is so") as caught, usage():
        raise OSError(number, "it is so")
    assert caught.value.errno == number


def _said(monkeypatch: pytest.MonkeyPatch, command: object, stdout: io.TextIOWrapper) -> int:
    monkeypatch.setattr(cli, "dispatch", command)
    monkeypatch.setattr(sys, "stdout", stdout)
    return entry.main()


@pytest.mark.parametrize("lines", [1, 10_000])
def test_it_ends_quietly_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], lines: int
) -> None:
    """Also where all that was said lies in a buffer until the end."""

    def say(arguments: list[str]) -> int:
        with usage():
            for _ in range(lines):
                print("a line of twenty signs")
        return 3

    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        assert _said(monkeypatch, say, stdout) == 3
    assert capfd.readouterr().err == ""


def test_errors_are_not_printed_on_the_output_if_standard_error_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "argv", ["bench", "explain", "no/such/run"])
    assert entry.main() == 2
    assert capsys.readouterr().out == ""
    sys.stderr.close()


def test_a_current_folder_that_was_deleted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "argv", ["bench", "status"])
    assert entry.main() == 2
    assert capsys.readouterr().err == entry.GONE + "\n"


def test_signs_that_the_output_cannot_have_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(arguments: list[str]) -> int:
        with usage():
            print("gr\u00fcn \ud800 \u00d72")
        return 0

    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert _said(monkeypatch, say, stdout) == 0
    assert stdout.buffer.getvalue() == b"gr?n ? ?2\n"  # type: ignore[attr-defined]
