"""The server of the board: the page, and a stream of its changes. Read-only; only answers requests whose `Host` is
this server.

The stream consists of server-sent events. Each has an id, `<start of the server>-<number of the change>`. After a lost
connection a browser sends its last id and gets the changes since. Without an id, or with another server's, it gets all
pieces.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.base.grouping import grouped
from bench.base.hosts import named
from bench.dashboard import page
from bench.dashboard.board import VERDICT, Piece, RunBoard, whole
from bench.dashboard.verdicts import CellVerdicts, Judge, Stamp, unchanging

POLL_S = 0.2
"""Seconds between two scans of the folders while a page is connected."""
MOST_POLL_S = 1.0
JUDGE_S = 2.0
"""Seconds between two checks for runs to judge."""
MOST_KEYS = 32
"""Most runs that one page may ask for."""
NOBODY = "frame-ancestors 'none'"
"""Policy against clickjacking: no page may embed ours in a frame."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": f"default-src 'none'; {NOBODY}",
}
"""Headers of every response that does not set its own."""

T = TypeVar("T")


def names_us(host: str, bound: str) -> bool:
    """Return whether a request's `Host` is this server, which is bound to `bound`, and not a foreign name that
    resolves to it (DNS rebinding). An address is accepted always, a name only if it is `localhost`, this machine's
    name or `bound`."""
    name = named(host)
    if name is None:
        return False
    with suppress(ValueError):
        address = ipaddress.ip_address(name)
        return address.is_loopback or not _is_loopback(bound)
    ours = {"localhost", bound, *(() if _is_loopback(bound) else (socket.gethostname(),))}
    return name in {each.lower().removesuffix(".") for each in ours}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def asked_by_us(headers: Iterable[tuple[bytes, bytes]], bound: str) -> bool:
    """Return whether a request has exactly one `Host`, which is this server, and does not come from another site's
    page. Browsers send the origin of a request in `Sec-Fetch-Site`, old ones in `Origin`."""
    values = grouped((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    hosts, sites, origins = (values.get(name, []) for name in ("host", "sec-fetch-site", "origin"))
    if len(hosts) != 1 or not names_us(hosts[0], bound):
        return False
    own = (f"http://{hosts[0]}".lower(), f"https://{hosts[0]}".lower())
    return all(site in ("none", "same-origin") for site in sites) and all(origin.lower() in own for origin in origins)


class OnlyUs:
    """Middleware that refuses requests for another host and requests from other sites' pages. Every response has
    `HEADERS`."""

    def __init__(self, app: ASGIApp, bound: str) -> None:
        self._app, self._bound = app, bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = PlainTextResponse("this dashboard has another name\n", 403)
        await (self._app if asked_by_us(scope["headers"], self._bound) else refused)(scope, receive, answer)


async def apart(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread; return its result or raise its exception. The server does not wait for the thread
    when it ends, so that a hanging disk cannot block it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(put: Callable[[], None]) -> None:
        if not answer.done():
            put()

    def run() -> None:
        put: Callable[[], None]
        try:
            put = partial(answer.set_result, work())
        except Exception as error:
            put = partial(answer.set_exception, error)
        with suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(tell, put)

    threading.Thread(target=run, daemon=True).start()
    return await answer


class BoardStream:
    """The board, kept up to date while pages are connected."""

    def __init__(
        self,
        root: Path,
        poll_s: float,
        closing: Callable[[], bool],
        judge: Judge | None = None,
        stamp: Stamp = unchanging,
    ) -> None:
        self.board = RunBoard(root)
        self._verdicts = CellVerdicts(judge, stamp) if judge is not None else None
        self._reading = asyncio.Lock()
        self.start = secrets.token_hex(4)
        self._closing = closing
        self._poll_s = poll_s
        self._watching: Counter[tuple[str, ...]] = Counter()
        self._awake = asyncio.Event()
        self._complained = ""

    async def look(self) -> None:
        """Keep the board up to date until cancelled. Sleeps while no page is connected."""
        while True:
            await self._awake.wait()
            keys = {key for keys in self._watching for key in keys}
            began = time.monotonic()
            try:
                more = await self._refresh(keys)
            except Exception:  # what a run does stays in its row; this is ours, and the next look may be better
                more = False
                self._complain(traceback.format_exc())
            if not self._watching:
                self._awake.clear()
            elif not more:
                # With very many runs or ranks a look takes longer; it is not to take a core from who trains.
                await asyncio.sleep(min(max(self._poll_s, 4 * (time.monotonic() - began)), MOST_POLL_S))

    async def _refresh(self, keys: Collection[str]) -> bool:
        async with self._reading:
            return await apart(partial(self.board.refresh, keys))

    async def judge(self) -> None:
        """Have the cells judged while a page is connected, until cancelled. Running runs take precedence."""
        if (verdicts := self._verdicts) is None:
            return
        while True:
            await self._awake.wait()
            async with self._reading:
                finished = self.board.finished
            began = time.monotonic()
            known = await apart(partial(verdicts.next, finished))
            took = time.monotonic() - began
            async with self._reading:
                for key, verdict in known:
                    self.board.enter(key, verdict)
            await asyncio.sleep(max(JUDGE_S, 9 * took))  # many cells take long: a tenth of a core is enough

    def _complain(self, text: str) -> None:
        if text != self._complained:
            self._complained = text
            print(text, file=sys.stderr, flush=True)

    async def changes(self, keys: tuple[str, ...], last_id: str) -> AsyncIterator[ServerSentEvent]:
        """Yield the events for one page."""
        start, _, number = last_id.partition("-")
        known = start == self.start and number.isdecimal()
        sent = int(number[:18]) if known else 0
        self._watching[keys] += 1
        self._awake.set()
        try:
            hello = {"start": self.start, "root": str(self.board.root), "replay": not known}
            yield ServerSentEvent(json.dumps(hello), event="hello", retry=500)
            while not self._closing():
                pieces = self.board.since(sent, keys)
                for piece in pieces:
                    yield self._event(piece)
                    sent = piece.number
                if not pieces:
                    await asyncio.sleep(self._poll_s / 2)
            with suppress(Exception):  # what it ends with is worth a last look
                await self._refresh(keys)
            for piece in self.board.since(sent, keys):
                yield self._event(piece)
        finally:
            self._watching[keys] -= 1
            self._watching += Counter()  # without those at zero

    def _event(self, piece: Piece) -> ServerSentEvent:
        data = f'{{"key":{json.dumps(piece.key)},"body":{piece.text}}}'
        return ServerSentEvent(data, event=piece.kind, id=f"{self.start}-{piece.number}")


def app(
    root: Path,
    bound: str = "127.0.0.1",
    poll_s: float = POLL_S,
    judge: Judge | None = None,
    stamp: Stamp = unchanging,
) -> Starlette:
    """Return the application over the runs below `root`, for a server that is bound to `bound`. `judge`: gives verdicts;
    `stamp`: returns what changes with the baselines."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.stream = stream = BoardStream(root, poll_s, lambda: bool(app.state.closing()), judge, stamp)
        tasks = [asyncio.create_task(work) for work in (stream.look(), stream.judge())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def index(request: Request) -> Response:
        text = page.live()
        return HTMLResponse(text, headers={"Content-Security-Policy": f"{page.policy(text)}; {NOBODY}"})

    async def events(request: Request) -> Response:
        if request.method == "HEAD":  # the stream has no end
            return Response(media_type="text/event-stream")
        keys = tuple(dict.fromkeys(request.query_params.getlist("run")))[:MOST_KEYS]
        last_id = request.headers.get("last-event-id", "")
        return EventSourceResponse(request.app.state.stream.changes(keys, last_id))

    async def export(request: Request) -> Response:
        keys = set(request.query_params.getlist("run")[:MOST_KEYS])
        pieces = request.app.state.stream.board.since(0, ())
        verdicts = [piece for piece in pieces if piece.kind == VERDICT]  # as far as they are known: to judge takes long
        text = await apart(lambda: page.exported([*whole(root, keys or None), *verdicts], root))
        return HTMLResponse(text, headers={"Content-Disposition": 'attachment; filename="dashboard.html"'})

    routes = [Route("/", index), Route("/events", events), Route("/export", export)]
    made = Starlette(routes=routes, middleware=[Middleware(OnlyUs, bound=bound)], lifespan=lifespan)
    made.state.closing = lambda: False  # whoever runs it knows better: streams end then
    return made
