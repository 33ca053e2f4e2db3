"""A server on loopback that fails, waits and notes what it is asked for."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

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
