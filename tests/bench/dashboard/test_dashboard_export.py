"""The page as a file: it has everything in itself, and hostile names are text."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.routing import Route

from bench.dashboard import page, server
from bench.dashboard.board import whole
from bench.results.runfolder import CONFIG
from tests.bench.conftest import Bench
from tests.bench.dashboard.dashboards import HOSTILE, begin
from tests.bench.streams import make_spec, write_run


class Scripts(HTMLParser):
    """The scripts of a page, and all that it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append("")
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        self._in_script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self.scripts and self._in_script:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


def test_an_exported_page_has_everything_in_itself_and_hostile_names_are_text(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", spec := make_spec())
    writer = begin(tmp_path / "runs" / "<script>alert(0)<")
    (writer.path / CONFIG).write_text(json.dumps({"model": HOSTILE, "run_id": HOSTILE, HOSTILE: HOSTILE}))
    text = page.exported(whole(tmp_path / "runs"), tmp_path / "runs")
    found = Scripts(text)
    data, script = found.scripts
    assert script == Scripts(page.live()).scripts[1]
    assert {piece["key"] for piece in json.loads(data)["pieces"]} == {
        f"mlp/nccl_cadence/{spec.run_id}",
        "<script>alert(0)</mlp/nccl_cadence/w2-s0-abc",
    }
    assert json.loads(data)["pieces"][0]["body"]["model"] in (HOSTILE, "mlp")
    assert set(found.loads) <= {"data:,", "export"}
    assert "img" not in found.tags
    assert not re.findall(r"https?://(?!www\.w3\.org)", text)
    assert "innerHTML" not in text
    assert len(text) < 200_000


def test_export_is_a_verb(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs", make_spec())
    assert bench("dashboard", "export", "runs", "--out", "there/it.html") == 0
    assert (tmp_path / "there" / "it.html").stat().st_size > 10_000
    assert bench("dashboard", "export", "nowhere") == 2
    assert bench("dashboard", "--host", "no.such.host.invalid") == 2
    assert bench("dashboard", "--port", "99999") == 2
    assert "choose another --port" in capsys.readouterr().err


def test_an_export_of_the_server_has_the_verdicts_that_are_known(tmp_path: Path) -> None:
    write_run(tmp_path, make_spec())
    (key,) = {piece.key for piece in whole(tmp_path)}
    app = server.app(tmp_path)
    (route,) = [each for each in app.routes if isinstance(each, Route) and each.path == "/export"]
    stream = app.state.stream = server.BoardStream(tmp_path, 1.0, lambda: False)
    stream.board.refresh([])
    stream.board.enter(key, {"name": "PASS", "words": "as good as can be"})
    answer = asyncio.run(route.endpoint(Request({"type": "http", "app": app, "query_string": b"", "headers": []})))
    assert "as good as can be" in answer.body.decode()
