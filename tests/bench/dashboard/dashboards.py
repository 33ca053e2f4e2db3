"""A run in progress for a dashboard, its server in a thread of this process, and a reader of its stream."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from bench.dashboard import server
from bench.dashboard.process import listen
from bench.results.runfolder import CONFIG, EVENTS
from bench.results.writer import RunWriter
from ddp.core.messages import events
from ddp.process.codec import encode

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def progress(at: float, rank: int = 0, samples: int = 10) -> events.Progress:
    return events.Progress(at, rank, 0, 1, samples, 0.1, 5.0, 0.1)


def line(record: events.Progress) -> bytes:
    return encode(record, record.at) + b"\n"


def begin(root: Path, run_id: str = "w2-s0-abc") -> RunWriter:
    """A run in progress."""
    writer = RunWriter(root, "mlp", "nccl_cadence", run_id)
    (writer.path / CONFIG).write_text(json.dumps({"model": "mlp", "run_id": run_id, "world_size": 2}))
    (writer.path / EVENTS).touch()
    return writer


class Server(uvicorn.Server):
    """Closes also what a browser opened at the last moment, which uvicorn leaves to the end of the process."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def serving(root: Path, port: int = 0, **judging: Any) -> Iterator[int]:
    """The port of a server over `root`."""
    listening = listen("127.0.0.1", port)
    app = server.app(root, poll_s=0.05, **judging)
    runner = Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))
    app.state.closing = lambda: runner.should_exit
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        runner.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive()


class Message(NamedTuple):
    kind: str
    id: str
    body: Any


def messages(port: int, query: str = "", last_id: str = "") -> Iterator[Message]:
    """What the stream says, as it comes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", f"/events{query}", headers={"Last-Event-ID": last_id} if last_id else {})
        answer = connection.getresponse()
        assert answer.status == 200
        said: dict[str, str] = {}
        while line := answer.readline():
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name:
                said[name] = value
            elif "event" in said:
                yield Message(said["event"], said.get("id", ""), json.loads(said["data"]))
                said = {}
    finally:
        connection.close()


def until(what: Any, timeout_s: float = 20.0) -> Any:
    """What `what()` returns as soon as it is something."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found
    return found
