"""The dashboard's server: what it streams, to whom, and that it goes on."""

from __future__ import annotations

import http.client
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bench.dashboard import tree
from bench.dashboard.board import ABOUT, LIVE, ROW
from bench.dashboard.server import names_us
from bench.runfolder import EVENTS
from tests.bench.dashboards import begin, line, messages, progress, serving
from tests.bench.streams import make_spec, write_run


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
    ],
)
def test_whom_requests_may_name(host: str, bound: str, ours: bool) -> None:
    assert names_us(host, bound) is ours


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
