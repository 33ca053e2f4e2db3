"""The dashboard over folders: what is found, how it is followed, how it is served, and that it harms nobody."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.dashboard import page, tree, view
from bench.dashboard.about import About
from bench.dashboard.beside import Beside
from bench.dashboard.board import ABOUT, LIVE, ROW, Board, whole
from bench.dashboard.server import names_us
from bench.dashboard.state import State
from bench.dashboard.tail import Tail
from bench.journal import Journal
from bench.runfolder import CONFIG, EVENTS, METRICS, RunWriter, find_runs
from ddp.core import commands, events
from ddp.runtime.codec import encode
from tests.bench.conftest import Bench
from tests.bench.dashboards import messages, serving, until
from tests.bench.streams import make_records, make_spec, write_run

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


def test_records_are_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    tail = Tail(tmp_path)
    tail.read()
    whole_line = line(progress(1.0))
    for upto, samples in ((0, 0), (5, 0), (len(whole_line) - 1, 0), (len(whole_line), 10)):
        path.write_bytes(whole_line[:upto])
        tail.read()
        assert tail.state.samples == samples
    with path.open("ab") as file:
        file.write(b"no record\n" + b'{"type":"Progress"}\n' + b"\xff\n" + b"[" * 9000 + b"\n" + line(progress(2.0)))
    tail.read()
    assert (tail.state.samples, tail.malformed) == (20, 4)


def test_a_file_that_takes_the_place_of_another_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, tail = tmp_path / EVENTS, Tail(tmp_path)
    path.write_bytes(line(progress(1.0)) * 3)
    tail.read()
    part = tmp_path / "part"
    part.write_bytes(line(progress(1.0, samples=7)) * 4)
    os.replace(part, path)
    assert tail.read()
    tail.read()
    assert tail.state.samples == 28


def test_what_ranks_measure_counts_once_before_and_after_the_merge(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    (tmp_path / "scratch").mkdir()
    with Journal(tmp_path / EVENTS) as journal:
        journal.keep_slices(tmp_path / "scratch", 1)
        journal.add(progress(1.0), 1.0)
        memory = [events.Memory(1.0 + i, 0, 100 * i, float(i)) for i in range(1, 4)]
        (tmp_path / "scratch" / "slices-0.jsonl").write_bytes(b"".join(encode(m) + b"\n" for m in memory))
        tail.read()
        shown = tail.state
        assert (shown.ranks[0].peak_rss_bytes, shown.ranks[0].cpu_s) == (300, 3.0)
        journal.merge()
    while tail.read():
        pass
    assert tail.state.ranks == shown.ranks
    assert tail.state.series == shown.series


def test_a_run_is_found_while_it_lasts_and_after_under_one_name(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    key = "mlp/nccl_cadence/w2-s0-abc"
    assert {name: found.running for name, found in tree.scan(tmp_path).items()} == {key: True}
    board = Board(tmp_path)
    board.refresh([key])
    (writer.path / EVENTS).write_bytes(line(progress(1.0)))
    board.refresh([key])
    place = writer.commit("failed")
    board.refresh([key])
    (row,) = [json.loads(piece.text) for piece in board.since(0, []) if piece.kind == ROW]
    assert (row["key"], row["status"]) == (key, "left")  # no result was written
    assert tree.scan(place).keys() == {"w2-s0-abc"}
    live = {piece.key: json.loads(piece.text) for piece in board.since(0, [key]) if piece.kind == LIVE}
    assert live[key]["samples"] == 10
    assert any("metrics.json: missing" in note for note in live[key]["notes"])


def test_a_run_that_is_trained_again_is_shown_as_it_is_now(tmp_path: Path) -> None:
    write_run(tmp_path, spec := make_spec())
    key = f"mlp/nccl_cadence/{spec.run_id}"
    board = Board(tmp_path)
    board.refresh([key])
    writer = RunWriter(tmp_path, spec.model, spec.mode, spec.run_id)
    (writer.path / EVENTS).write_bytes(line(progress(1.0)))
    while board.refresh([key]):
        pass
    now = {piece.kind: json.loads(piece.text) for piece in board.since(0, [key])}
    assert (now[ROW]["status"], now[LIVE]["samples"]) == ("running", 10)
    writer.discard()
    while board.refresh([key]):
        pass
    now = {piece.kind: json.loads(piece.text) for piece in board.since(0, [key])}
    assert (now[ROW]["status"], now[LIVE]["samples"]) == ("ok", 5760)


def test_only_what_changed_has_a_new_number(tmp_path: Path) -> None:
    write_run(tmp_path, spec := make_spec())
    key = f"mlp/nccl_cadence/{spec.run_id}"
    board = Board(tmp_path)
    board.refresh([key])
    number = board.number
    assert {piece.kind for piece in board.since(0, [key])} == {ROW, ABOUT, LIVE}
    assert {piece.kind for piece in board.since(0, ["other"])} == {ROW}
    board.refresh([key])
    assert board.number == number
    write_run(tmp_path, make_spec(seed=1))
    board.refresh([key])
    assert [(piece.kind, piece.key[-len("w2-s1-") :] != "") for piece in board.since(number, [key])] == [(ROW, True)]


def test_a_run_that_goes_away_is_taken_from_the_page(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    board = Board(tmp_path)
    board.refresh([])
    number = board.number
    writer.discard()
    board.refresh([])
    assert [(piece.kind, piece.text) for piece in board.since(number, [])] == [(ROW, "null")]


def test_damaged_folders_are_rows_with_a_note(tmp_path: Path) -> None:
    for name, body in {"a": "{", "b": "[]", "c": '{"schema_version": 99}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(body)
        (tmp_path / name / CONFIG).write_text(body)
    rows = [json.loads(piece.text) for piece in whole(tmp_path) if piece.kind == ROW]
    assert [row["status"] for row in rows] == ["left"] * 3
    notes = [json.loads(piece.text)["notes"] for piece in whole(tmp_path) if piece.kind == LIVE]
    assert all(notes)


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


def test_a_run_with_a_dashboard_is_the_same_run_and_survives_it(
    quiet: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Beside] = []

    class Watched(Beside):
        def __init__(self, output: Path) -> None:
            super().__init__(output)
            made.append(self)
            self._process.kill()  # it dies at the worst moment

    monkeypatch.setattr("bench.dashboard.beside.Beside", Watched)
    assert quiet("-m", "model=mlp", "mode=solo", "seed=0,1", "output=with", "dashboard=true") == 0
    assert quiet("model=mlp", "mode=solo", "output=without") == 0
    assert re.search(r"^dashboard http://127\.0\.0\.1:\d+/$", capsys.readouterr().out, re.MULTILINE)
    ((one, _), _), ((other,), _) = find_runs(tmp_path / "with"), find_runs(tmp_path / "without")
    assert one.config == other.config
    assert one.metrics.run_id == other.metrics.run_id
    assert len(made) == 1  # a sweep has one
    assert not any(psutil.pid_exists(beside._process.pid) for beside in made)


def test_a_dashboard_beside_a_run_serves_and_ends_with_it(tmp_path: Path) -> None:
    write_run(tmp_path, make_spec())
    code = (
        "import sys, time; from pathlib import Path; from bench.dashboard.beside import Beside\n"
        "b = Beside(Path(sys.argv[1])); print(b.address, b._process.pid, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    address, pid = run.stdout.readline().split()
    stream = messages(int(address.rpartition(":")[2].strip("/")))
    assert [next(stream).kind for _ in range(2)] == ["hello", ROW]
    stream.close()
    run.kill()
    run.communicate()
    until(lambda: not psutil.pid_exists(int(pid)))


def test_judging_a_tree_of_runs_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    make_records(make_spec())
    code = "import sys; import bench.dashboard.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def shown(board: Board, kind: str, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    return {piece.key: json.loads(piece.text) for piece in board.since(0, keys) if piece.kind == kind}


def test_what_one_folder_does_is_said_in_its_row_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).write_text(json.dumps({"model": name, "run_id": name, "world_size": 2}))
    live = view.live

    def fail(about: About, state: State) -> Any:
        if about.key == "bad" and about.status != "broken":
            raise ZeroDivisionError("in its\nown way")
        return live(about, state)

    monkeypatch.setattr(view, "live", fail)
    board, keys = Board(tmp_path), ("bad", "good")
    for _ in range(3):
        assert board.refresh(keys) is False
    rows, lives = shown(board, ROW), shown(board, LIVE, keys)
    assert {key: row["status"] for key, row in rows.items()} == {"bad": "broken", "good": "left"}
    assert rows["bad"]["problem"] == "this folder cannot be shown (ZeroDivisionError: in its own way)"
    assert lives["bad"]["notes"] == [rows["bad"]["problem"]]
    assert "metrics.json: missing" in rows["good"]["problem"]
    number = board.number
    board.refresh(keys)
    assert board.number == number, "it is not tried at every look"


def test_a_folder_that_cannot_be_read_at_all_is_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path)
    read, tried = tree.read, []

    def fail(found: tree.Found) -> About:
        tried.append(found)
        raise RuntimeError("no")

    board = Board(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tree, "read", fail)
        for _ in range(3):
            board.refresh([])
    assert len(tried) == 1
    (row,) = shown(board, ROW).values()
    assert row["status"] == "broken"
    assert tree.read is read
    (tmp_path / "mlp" / "nccl_cadence" / tried[0].folder.name / CONFIG).write_text('{"model": "mlp"}')
    board.refresh([])
    (row,) = shown(board, ROW).values()
    assert (row["status"], row["problem"]) == ("running", None)


@pytest.mark.parametrize("where", ["config", "metrics", "records"])
def test_ranks_that_no_run_has_are_said_and_not_counted(tmp_path: Path, where: str) -> None:
    folder = write_run(tmp_path, spec := make_spec())
    key, many = f"mlp/nccl_cadence/{spec.run_id}", 2_000_000_000
    if where == "config":
        (folder / "metrics.json").unlink()
        (folder / CONFIG).write_text(json.dumps({"world_size": many}))
    elif where == "metrics":
        body = json.loads((folder / "metrics.json").read_text()) | {"world_size": many}
        (folder / "metrics.json").write_text(json.dumps(body))
    else:
        plan = commands.Plan((1,) * 5000, (), False, 1, False, 1, "too many")
        with (folder / EVENTS).open("ab") as file:
            file.write(encode(plan, 200.0) + b"\n" + line(progress(200.0, rank=many)))
    board = Board(tmp_path)
    while board.refresh([key]):
        pass
    row, live = shown(board, ROW)[key], shown(board, LIVE, (key,))[key]
    assert len(live["ranks"]) == 2
    assert len(live["controller"]["counts"]) == 2
    said = {
        "config": "world_size=2e+09: no run has more than 4096 ranks",
        "metrics": f"{folder / METRICS}: world_size: Input should be less than or equal to 4096",
        "records": None,
    }[where]
    assert row["problem"] == said
    assert (said in live["notes"]) is (said is not None)


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
