"""Downloads, from a server on loopback: whole or not there, gone on with, once, from the next address, and offline."""

from __future__ import annotations

import gzip
import hashlib
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bench.models.data import cifar10, download, fashion_mnist, mnist, prepare
from bench.models.data.download import ProgressMeter, Remote, fetch, one_at_a_time
from tests.models.data_files import pack, write_cifar, write_mnist

CONTENT = np.random.default_rng(0).bytes(300_000)


class Site(ThreadingHTTPServer):
    """Serves `files`. The first `failures` answers end after `stop_after` bytes; with `hold`, all wait for it half-way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.asked: list[tuple[str, str | None]] = []
        self.failures, self.stop_after = 0, 0
        self.ranges = True
        self.hold: threading.Event | None = None
        self.held = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site, wanted = self.server, self.headers.get("Range")
        site.asked.append((self.path, wanted))
        content = site.files.get(self.path)
        if content is None:
            return self.send_error(404)
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and site.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if site.failures:
            site.failures -= 1
            body = body[: site.stop_after]
        if site.hold is None:
            self.wfile.write(body)
            return None
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        site.held.set()
        site.hold.wait(30)
        self.wfile.write(body[len(body) // 2 :])
        return None

    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        if server.hold is not None:
            server.hold.set()
        server.shutdown()
        thread.join()


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


def serve_mnist(site: Site, monkeypatch: pytest.MonkeyPatch, home: Path, module: object) -> None:
    """Small files of the format, at addresses on loopback."""
    write_mnist(home)
    files: object = module.FILES  # type: ignore[attr-defined]
    packed = {name: gzip.compress((home / name).read_bytes()) for name in files.digests}
    site.files |= {f"/{name}.gz": content for name, content in packed.items()}
    digests = {name: hashlib.md5(content).hexdigest() for name, content in packed.items()}
    monkeypatch.setattr(
        module, "ORIGIN", replace(files, mirrors=[f"{site.url}/gone/", f"{site.url}/"], digests=digests).origin
    )


@pytest.mark.parametrize("module", [mnist, fashion_mnist])
def test_mnist_is_downloaded_where_torchvision_has_it(
    module: object, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_mnist(site, monkeypatch, tmp_path / "origin", module)
    name = module.FILES.name
    prepare(name, str(tmp_path / "data"))
    raw = tmp_path / "data" / module.FILES.folder / "raw"
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "origin").iterdir()
    }
    count = len(site.asked)
    prepare(name, str(tmp_path / "data"))
    assert len(site.asked) == count, "what is there needs no network"
    (raw / "t10k-labels-idx1-ubyte").unlink()
    prepare(name, str(tmp_path / "data"))
    assert [path for path, _ in site.asked[count:]] == ["/gone/t10k-labels-idx1-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]


@pytest.fixture
def cifar(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_cifar(tmp_path / "origin")
    archive = tmp_path / "cifar-10-python.tar.gz"
    pack(archive, tmp_path / "origin" / "cifar-10-batches-py")
    site.files["/cifar"] = archive.read_bytes()
    about = Remote(archive.name, (f"{site.url}/cifar",), hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(cifar10, "ORIGIN", replace(cifar10.FILES, archive=about).origin)
    return archive


def test_cifar_is_downloaded_and_unpacked(cifar: Path, site: Site, tmp_path: Path) -> None:
    home = tmp_path / "data"
    left = home / ".cifar10.unpacked" / "cifar-10-batches-py"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"of an attempt that was killed")
    prepare("cifar10", str(home))
    assert len(list((home / "cifar-10-batches-py").iterdir())) == 6
    assert sorted(path.name for path in home.iterdir() if not path.name.startswith(".")) == [
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ]
    (home / "cifar-10-batches-py" / "test_batch").unlink()
    prepare("cifar10", str(home))
    assert len(site.asked) == 1, "the archive is still there"


def test_an_archive_put_there_by_hand_is_unpacked(cifar: Path, site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    cifar.rename(tmp_path / "data" / cifar.name)
    prepare("cifar10", str(tmp_path / "data"))
    assert site.asked == []


OFFLINE = {
    "mnist": ("train-images-idx3-ubyte, ", "put these files there, unpacked, as torchvision keeps them"),
    "cifar10": ("data_batch_1, ", "put cifar-10-python.tar.gz into "),
    "shakespeare": ("input.txt not found in ", "put this file there"),
}


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_one_line_says_what_to_put_where(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise download.urllib.error.URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    missing, remedy = OFFLINE[name]
    with pytest.raises(ValueError, match=rf"^data set {name}: {missing}") as caught:
        prepare(name, str(tmp_path / "data"))
    said = str(caught.value)
    for part in ("Name or service not known", remedy, "or set data.dir", str(tmp_path / "data")):
        assert part in said
    assert "\n" not in said
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() and not path.name.startswith(".")]


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"data set shakespeare: .*/file/data/shakespeare.*Not a directory"):
        prepare("shakespeare", str(tmp_path / "file" / "data"))


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
