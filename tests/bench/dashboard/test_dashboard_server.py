"""The dashboard's server: what it streams, to whom, and that it goes on."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bench.dashboard import server, tree
from bench.dashboard.board import ABOUT, LIVE, ROW
from bench.dashboard.server import names_us
from bench.results.runfolder import EVENTS
from tests.bench.dashboard.dashboards import begin, line, messages, progress, serving
from tests.bench.streams import make_spec, write_run
from tests.warm import Warm, wait_for


def test_a_stream_says_everything_and_after_a_broken_connection_what_is_new(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    query = "?run=mlp/nccl_cadence/w2-s0-abc"
    with serving(tmp_path) as port:
        hello, *first = islice(messages(port, query), 4)
        assert hello.body["replay"]
        assert {m.kind for m in first} == {ROW, ABOUT, LIVE}
        (writer.path / EVENTS).write_bytes(line(progress(1.0)))
        fresh = messages(port, query, last_id=first[-1].id)
        assert next(fresh).body["replay"] is False
        assert next(m for m in fresh if m.kind == LIVE).body["body"]["samples"] == 10
        fresh.close()
        again = messages(port, query, last_id="of-another-server-7")
        assert next(again).body["replay"]
        assert {m.kind for m in islice(again, 3)} == {ROW, ABOUT, LIVE}
        again.close()
        numbers = [int(m.id.rpartition("-")[2]) for m in first]
        assert numbers == sorted(numbers)


def test_nobody_writes_and_nobody_else_asks(tmp_path: Path) -> None:
    def ask(port: int, method: str = "GET", path: str = "/", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    with serving(tmp_path) as port:
        answer = ask(port)
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
        assert "script-src 'sha256-" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert ask(port, "POST").status == 405
        assert ask(port, path="/../../etc/passwd").status == 404
        for path in ("/", "/events", "/export"):
            assert ask(port, path=path, Host="rebound.example").status == 403
            assert ask(port, path=path, Sec_Fetch_Site="cross-site").status == 403


@pytest.mark.parametrize(
    ("host", "bound", "ours"),
    [
        ("127.0.0.1:80", "127.0.0.1", True),
        ("localhost:80", "127.0.0.1", True),
        ("[::1]:80", "::1", True),
        ("evil.example:80", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("10.0.0.7:80", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("10.0.0.7:80", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("box.lan:80", "box.lan", True),
        ("BOX.lan.:80", "Box.LAN", True),
        ("LOCALHOST.:80", "127.0.0.1", True),
        ("localhost..:80", "127.0.0.1", False),
        ("127.0.0.1.:80", "127.0.0.1", True),
        ("[::1]", "127.0.0.1", True),
        ("[::1]:", "127.0.0.1", True),
        ("[::1].evil.com", "127.0.0.1", False),
        ("[::1].evil.com:80", "127.0.0.1", False),
        ("[::1]evil.com", "127.0.0.1", False),
        ("[::1", "127.0.0.1", False),
        ("[localhost]", "127.0.0.1", False),
        ("[127.0.0.1]", "127.0.0.1", False),
        ("[::ffff:10.0.0.7]", "127.0.0.1", False),
        ("::1", "127.0.0.1", False),
        ("localhost:80:evil.com", "127.0.0.1", False),
        ("localhost:evil.com", "127.0.0.1", False),
        ("evil.com@localhost", "127.0.0.1", False),
        ("localhost@evil.com:80", "127.0.0.1", False),
        ("localhost,evil.com", "127.0.0.1", False),
        ("localhost/", "127.0.0.1", False),
        ("localhost\n", "127.0.0.1", False),
        ("0.0.0.0:80", "127.0.0.1", False),
        ("", "0.0.0.0", False),
        ("", "", False),
        (":80", "", False),
        (".", "127.0.0.1", False),
    ],
)
def test_whom_requests_may_name(host: str, bound: str, ours: bool) -> None:
    assert names_us(host, bound) is ours


def test_every_answer_forbids_frames_and_caches(tmp_path: Path) -> None:
    """Whatever the path, the method and the answer."""
    begin(tmp_path)
    with serving(tmp_path) as port:
        for path in ("/", "/events", "/export", "/nothing"):
            for method in ("GET", "HEAD", "POST", "OPTIONS", "TRACE", "PUT"):
                for host in ("localhost", "evil.com"):
                    status, headers, _ = raw(port, method, path, f"Host: {host}")
                    allowed = {"/nothing": 404}.get(path, 200 if method in ("GET", "HEAD") else 405)
                    assert status == (allowed if host == "localhost" else 403), (path, method, host)
                    assert "frame-ancestors 'none'" in headers["content-security-policy"]
                    assert "default-src 'none'" in headers["content-security-policy"]
                    wanted = {
                        "x-frame-options": "DENY",
                        "cache-control": "no-store",
                        "x-content-type-options": "nosniff",
                    }
                    assert {name: headers[name] for name in wanted} == wanted
                    assert headers["cross-origin-resource-policy"] == "same-origin"
                    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/events", "/export"])
def test_head_is_get_without_its_body(tmp_path: Path, path: str) -> None:
    begin(tmp_path)
    with serving(tmp_path) as port:
        status, headers, body = raw(port, "HEAD", path, "Host: localhost")
        assert (status, body) == (200, b"")
        got = raw(port, "GET", path, "Host: localhost")[1]
        assert headers["content-type"] == got["content-type"]
        assert headers.get("content-length") == got.get("content-length") or path == "/events"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:  # it ends, and the connection goes on
            asked = "".join(
                f"{words} HTTP/1.1\r\nHost: localhost\r\n\r\n" for words in (f"HEAD {path}", "GET /nothing")
            )
            line.sendall(asked.encode())
            answered = b""
            while b" 404 " not in answered:
                more = line.recv(1 << 16)
                assert more, answered
                answered += more


def test_head_of_the_stream_is_over_at_once(tmp_path: Path) -> None:
    """Else the folders would be looked at for somebody who sees nothing of it."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "HEAD",
        "path": "/events",
        "query_string": b"",
        "headers": [(b"host", b"[::1]:80")],
    }
    asyncio.run(asyncio.wait_for(server.app(tmp_path)(scope, receive, send), 10))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert not sent[-1]["body"]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Host: localhost"], 200),
        (["Host: [::1].evil.com"], 403),
        (["Host: localhost", "Origin: http://localhost"], 200),
        (["Host: localhost:81", "Origin: http://localhost:82"], 403),
        (["Host: localhost", "Origin: http://evil.com"], 403),
        (["Host: localhost", "Origin: null"], 403),
        (["Host: localhost", "Sec-Fetch-Site: same-site"], 403),
        (["Host: localhost", "Sec-Fetch-Site: same-origin"], 200),
        (["Host: localhost", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"], 403),
        (["Host: evil.com", "X-Forwarded-Host: localhost"], 403),
        (["Host: localhost", "Host: evil.com"], 400),
        ([], 400),
    ],
)
def test_who_may_ask(tmp_path: Path, lines: list[str], status: int) -> None:
    with serving(tmp_path) as port:
        assert raw(port, "GET", "/", *lines)[0] == status


def test_no_path_leads_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of mine")
    with serving(tmp_path / "runs") as port:
        for path in ("/secret", "/../secret", "/%2e%2e/secret", "/..%2fsecret", "//secret", "/export/../../secret"):
            assert raw(port, "GET", path, "Host: localhost")[0] == 404
        for query in ("../secret", "..%2fsecret", "/etc"):
            _, _, body = raw(port, "GET", f"/export?run={query}", "Host: localhost")
            assert b"of mine" not in body


def raw(port: int, method: str, path: str, *lines: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and what came of the body within the answer's first moments, of a request of exactly these lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
        said = b""
        while b"\r\n\r\n" not in said and (more := line.recv(1 << 16)):
            said += more
        head, _, body = said.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
        endless = method == "GET" and headers.get("content-type", "").startswith("text/event-stream")
        while not endless and (more := line.recv(1 << 16)):
            body += more
    return int(first.split()[1]), headers, body


def test_a_disk_that_does_not_answer_keeps_no_server_from_ending(warm: Warm, tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C, while a look hangs and somebody watches."""
    code = """
import sys, threading
from bench.command import cli
from bench.dashboard import tree
def hang(root):
    print("hangs", flush=True)
    threading.Event().wait()
tree.scan = hang
sys.exit(cli.dispatch(["dashboard", sys.argv[1]]))
"""
    (tmp_path / "script.py").write_text(code)
    (tmp_path / "runs").mkdir()
    for number in (signal.SIGTERM, signal.SIGINT):
        process = warm.start(tmp_path, "script.py", str(tmp_path / "runs"))
        try:
            first = wait_for(lambda said=process.printed: "\n" in said() and said().splitlines()[0], process)
            stream = messages(int(first.rstrip("/").rpartition(":")[2]))
            assert next(stream).kind == "hello"
            wait_for(lambda said=process.printed: said().endswith("\nhangs\n"), process)
            os.kill(process.pid, number)
            process.wait(30)
            stream.close()
        finally:
            process.kill_all()


def test_a_look_that_fails_is_not_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is complained of once, and the page goes on as soon as it can."""
    write_run(tmp_path, make_spec())
    scan, looks = tree.scan, []

    def fail_at_first(root: Path) -> Any:
        looks.append(root)
        if len(looks) < 3:
            raise RuntimeError("the disk is away")
        return scan(root)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "scan", fail_at_first)
        with serving(tmp_path) as port:
            stream = messages(port)
            assert [next(stream).kind for _ in range(2)] == ["hello", ROW]
            stream.close()
    assert capsys.readouterr().err.count("RuntimeError: the disk is away") == 1
