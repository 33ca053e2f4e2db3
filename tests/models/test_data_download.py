"""Downloads, from a server on loopback: whole or not there, gone on with, once, from the next address."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.models.data import download
from bench.models.data.download import ProgressMeter, Remote, fetch, one_at_a_time
from tests.models.site import CONTENT, Site


def remote(site: Site, *paths: str, content: bytes = CONTENT) -> Remote:
    urls = tuple(f"{site.url}{path}" for path in paths or ("/file",))
    return Remote("it.bin", urls, hashlib.sha256(content).hexdigest())


def test_a_file_is_fetched_once(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT
    assert site.asked == [("/file", None)]
    assert [path.name for path in tmp_path.iterdir()] == ["it.bin"]
    assert capsys.readouterr().err == f"downloading {site.url}/file (0.3 MB)\n"


def test_what_was_interrupted_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.failures, site.stop_after = 1, 100_000
    with pytest.raises(ValueError, match="the connection ended after 100000 of 300000 bytes"):
        fetch(remote(site), tmp_path)
    assert not (tmp_path / "it.bin").exists()
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT
    assert site.asked[1] == ("/file", "bytes=100000-")


def test_a_server_without_ranges_begins_anew(site: Site, tmp_path: Path) -> None:
    (tmp_path / "it.bin.part").write_bytes(CONTENT[:1000])
    site.ranges = False
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"x" * 1000, CONTENT + b"too long", b"x" * len(CONTENT)])
def test_a_part_of_another_file_is_found_out(left: bytes, site: Site, tmp_path: Path) -> None:
    (tmp_path / "it.bin.part").write_bytes(left)
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT
    assert len(site.asked) == 2


def test_a_whole_part_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "it.bin.part").write_bytes(CONTENT)
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT
    assert not (tmp_path / "it.bin.part").exists()


def test_another_file_than_expected_is_not_taken(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/file: another file than expected, by its check sum"):
        fetch(remote(site, content=b"what it should be"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_fetched_anew(site: Site, tmp_path: Path) -> None:
    (tmp_path / "it.bin").write_bytes(CONTENT[:-1])
    assert fetch(remote(site), tmp_path).read_bytes() == CONTENT


def test_the_next_address_is_tried(site: Site, tmp_path: Path) -> None:
    assert fetch(remote(site, "/gone", "/file"), tmp_path).read_bytes() == CONTENT
    with pytest.raises(ValueError, match=r"/gone: HTTP 404 Not Found; .*/lost: HTTP 404 Not Found"):
        fetch(replace(remote(site, "/gone", "/lost"), name="other"), tmp_path)


def test_a_silent_server_is_given_up(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "CONNECT_S", 0.1)
    site.hold = threading.Event()
    with pytest.raises(ValueError, match="timed out"):
        fetch(remote(site), tmp_path)


FETCH = """
import sys
from pathlib import Path
from bench.models.data.download import Remote, fetch, one_at_a_time
home = Path(sys.argv[1])
with one_at_a_time(home, "it"):
    fetch(Remote("it.bin", (sys.argv[2],), sys.argv[3]), home)
"""


def fetching(site: Site, home: Path) -> subprocess.Popen[str]:
    about = remote(site)
    command = [sys.executable, "-c", FETCH, str(home), about.urls[0], about.digest]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_process_that_is_killed_leaves_no_lock_and_no_file_taken_for_whole(site: Site, tmp_path: Path) -> None:
    site.hold = threading.Event()
    process = fetching(site, tmp_path)
    assert site.held.wait(30)
    part = tmp_path / "it.bin.part"
    while not (part.exists() and part.stat().st_size):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (tmp_path / "it.bin").exists()
    have = part.stat().st_size
    site.hold.set()
    site.hold = None
    with one_at_a_time(tmp_path, "it"):
        assert fetch(remote(site), tmp_path).read_bytes() == CONTENT
    assert site.asked[1] == ("/file", f"bytes={have}-")


def test_two_at_once_fetch_once_and_the_second_says_that_it_waits(site: Site, tmp_path: Path) -> None:
    site.hold = threading.Event()
    first = fetching(site, tmp_path)
    assert site.held.wait(30)
    second = fetching(site, tmp_path)
    assert second.stderr is not None
    assert second.stderr.readline() == f"waiting for another process that gets it ready in {tmp_path}\n"
    site.hold.set()
    for process in (first, second):
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert len(site.asked) == 1
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_progress_is_one_line_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with ProgressMeter("downloading it", 4_000_000) as meter:
        for _ in range(1000):
            meter.add(4000)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("\rdownloading it: 4.0 of 4.0 MB\033[K\n")
    assert said.count("\r") < 100


def test_a_full_disk_is_not_the_fault_of_an_address(site: Site, tmp_path: Path) -> None:
    """It is named with what is free, no other address is asked, and what has come is gone on with when there is room."""
    remote = Remote("file", (f"{site.url}/file", f"{site.url}/file?mirror"), hashlib.md5(CONTENT).hexdigest())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(
            ValueError, match=rf"^{tmp_path}/file.part: File too large, .* MB are free there; .* is kept"
        ):
            fetch(remote, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "file.part").stat().st_size == 100_000
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    assert site.asked == [("/file", None), ("/file", "bytes=100000-")]
