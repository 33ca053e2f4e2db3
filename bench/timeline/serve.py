"""`bench timeline open RUN`: serves the run folder on this machine's loopback, as Perfetto's page needs it.

The page (https://ui.perfetto.dev) may fetch traces only from 127.0.0.1:9001, and only if the answer allows it. The
browser reads the file; nothing is sent anywhere. Requests must name this address as their host, so that no other site
can point its own name here.
"""

from __future__ import annotations

import os
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.base.hosts import named
from ddp import regular_files

HOST, PORT = "127.0.0.1", 9001
UI = "https://ui.perfetto.dev"


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of one folder, without subfolders, and logs nothing."""

    def end_headers(self) -> None:
        """Add the headers that Perfetto's page needs."""
        self.send_header("Access-Control-Allow-Origin", UI)
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        super().end_headers()

    def do_OPTIONS(self) -> None:
        """Answer the preflight request of a browser before a public page may read from this machine."""
        self.send_response(204)
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.end_headers()

    def send_head(self) -> Any:
        """Refuse requests for other hosts or folders; else serve the file."""
        if named(self.headers.get("Host", "")) not in (HOST, "localhost"):
            self.send_error(403, "ask for 127.0.0.1")
            return None
        name = self.path.partition("?")[0].removeprefix("/")
        if name in ("", "index.html"):
            self.path = "/timeline.html"
        elif "/" in name or "%2f" in name.lower():
            self.send_error(404)
            return None
        return self._file(Path(self.translate_path(self.path)))

    def _file(self, path: Path) -> Any:
        """Send the headers of a regular file and return the open file; None after an error."""
        try:
            file = regular_files.opened(path, regular_files.RECORDS)
        except OSError:
            self.send_error(404)
            return None
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
        self.end_headers()
        return file

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the command has already printed all addresses."""


class Server(ThreadingHTTPServer):
    """A server on loopback; its threads end with it."""

    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a browser that disconnects during an answer."""


def server(folder: Path, port: int = PORT) -> Server:
    """Return a server bound to loopback. Raises ValueError with the remedy if the port is taken."""
    try:
        return Server((HOST, port), partial(Handler, directory=str(folder)))
    except OSError as error:
        raise ValueError(
            f"port {port} of this machine cannot be had ({error.strerror}), and Perfetto's page reads from no other than "
            f"{PORT}: end what uses it, or open {folder / 'timeline.html'} instead"
        ) from None


def link(port: int = PORT) -> str:
    """Return the address that opens the trace in Perfetto while the server runs."""
    return f"{UI}/#!/?url=http://{HOST}:{port}/timeline.json"


def serve(folder: Path, browser: bool) -> None:
    """Serve until Ctrl-C. Raises ValueError if the port is taken."""
    with server(folder) as serving:
        print(f"Perfetto  {link()}\npage      http://{HOST}:{PORT}/timeline.html\nCtrl-C ends it", flush=True)
        if browser:
            webbrowser.open(link())
        try:
            serving.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
