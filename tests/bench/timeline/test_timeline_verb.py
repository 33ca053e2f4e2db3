"""`bench timeline`: of folders that are whole, torn or killed; and what it serves."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from bench.timeline.rewrite import rewrite
from bench.timeline.serve import UI, link, serve, server
from ddp.core.messages.events import Slice
from ddp.process.codec import encode
from tests.bench.conftest import Bench
from tests.bench.streams import make_spec, write_run
from tests.bench.timeline.trace_rules import violations

CONFIG = {
    **{"run_id": "w2-s0-abc", "config_hash": "abcdef", "model": "mlp", "engine": "elche", "backend": "nccl"},
    **{"policy": {"name": "cadence"}, "world_size": 2, "cluster": {"speeds": [1.0, 0.5]}},
}

BEYOND = b"".join(encode(Slice(1.0, rank, "forward", 0.1)) + b"\n" for rank in range(2)).replace(
    b'"rank":1', b'"rank":%d' % 2**63
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path, make_spec("nccl_cadence"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def trace(folder: Path) -> list[dict]:
    body = json.loads((folder / "timeline.json").read_text())
    assert violations(body) == []
    return body["traceEvents"]


def test_a_run_folder_gets_its_files_again(bench: Bench, run: Path, capsys) -> None:
    assert bench("timeline", str(run)) == 0
    names = ["timeline.json", "timeline.html", "timeline.csv", "timeline.png"]
    assert capsys.readouterr().out.split() == [str(run / name) for name in names]
    assert {event["args"]["name"] for event in trace(run) if event["name"] == "process_name"} == {
        "rank 0 · cpu · emulated speed 1",
        "rank 1 · cpu · emulated speed 0.5",
        "run · mlp nccl_cadence",
    }
    first = (run / "timeline.json").read_bytes()
    assert rewrite(run) == run
    assert (run / "timeline.json").read_bytes() == first


def test_steps_of_several_micro_batches_stay_whole_and_a_launch_that_is_not_known_stays_so(run: Path) -> None:
    """Each micro-batch became a step; the launch was said to be that of this machine."""
    (run / "config.json").write_text(json.dumps(CONFIG | {"train": {"accumulate": 2}}))
    kinds = ("data", "forward", "backward") * 2 + ("optimizer",)
    slices = [Slice(100.0 + n + 0.1 * i, 0, kind, 0.1) for n in range(3) for i, kind in enumerate(kinds)]
    (run / "events.jsonl").write_bytes(b"".join(encode(each) + b"\n" for each in slices))
    rewrite(run)
    assert sum(event["name"] == "step" for event in trace(run)) == 3
    about = json.loads((run / "timeline.json").read_text())["otherData"]
    assert about["started"] is None
    rewrite(run)
    assert json.loads((run / "timeline.json").read_text())["otherData"] == about


@pytest.mark.parametrize("torn", [b"", b'{"at":3', b"\xf0\x9f"])
def test_what_was_torn_at_the_end_is_left_out(run: Path, torn: bytes) -> None:
    """A run that goes on or was killed: slices beside the records, the last line of each unfinished."""
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    kept = lines[: len(lines) // 2]
    (run / "events.jsonl").write_bytes(b"".join(line for line in kept if b'"Slice"' not in line) + torn)
    for rank in range(2):
        mine = [line for line in kept if b'"Slice"' in line and b'"rank":%d' % rank in line]
        (run / f"slices-{rank}.jsonl").write_bytes(b"".join(mine) + torn)
    hidden = run.rename(run.with_name(f".tmp-{run.name}-1"))
    (hidden / "metrics.json").unlink()
    assert rewrite(run) == hidden
    shown = [event for event in trace(hidden) if event["name"] in ("forward", "exchange", "evaluate")]
    kinds = [json.loads(line).get("kind") for line in kept]
    assert len(shown) == sum(kind in ("forward", "exchange", "evaluate") for kind in kinds) > 20
    assert len(pd.read_csv(hidden / "timeline.csv")) == sum(b'"Slice"' in line for line in kept)


@pytest.mark.parametrize(
    ("name", "body", "complaint"),
    [
        ("events.jsonl", b"{}\n", "not the records of a run"),
        ("events.jsonl", b'{"type":"Slice","at":"soon"}\n', "not the records of a run"),
        ("events.jsonl", b"\xff\xfe\n", "not the records of a run"),
        ("events.jsonl", b"[1]\n", "not the records of a run"),
        ("events.jsonl", encode(Slice(1.0, 0, "sleep", 0.1)) + b"\n", "not the records of a run"),
        ("events.jsonl", BEYOND, "not the records of a run"),
        ("config.json", b"{}", "not the configuration of a run"),
        ("config.json", b"[]", "not a JSON object"),
        ("config.json", json.dumps(CONFIG | {"world_size": 10**9}).encode(), "not the configuration of a run"),
    ],
)
def test_what_is_no_run_is_refused_in_a_line(bench: Bench, run: Path, capsys, name, body, complaint) -> None:
    (run / name).write_bytes(body)
    assert bench("timeline", str(run)) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kept", [0, 1, -1])
def test_good_pictures_stay_where_records_are_cut_short(bench: Bench, run: Path, kept: int) -> None:
    """They were replaced by empty ones."""
    rewrite(run)
    files = {path: path.read_bytes() for path in run.glob("timeline.*")}
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"record": {"lines": len(lines)}}))
    (run / "events.jsonl").write_bytes(b"".join(lines[:kept]))
    assert bench("timeline", str(run)) == 2
    assert {path: path.read_bytes() for path in run.glob("timeline.*")} == files


def test_no_folder_is_refused(bench: Bench, tmp_path: Path, capsys) -> None:
    assert bench("timeline", "runs/nothing") == 2
    assert "no run folder; give one" in capsys.readouterr().err
    assert bench("timeline") == 2
    assert bench("timeline", "open", "runs/nothing", "--no-browse") == 2
    assert "did you mean --no-browser?" in capsys.readouterr().err


@pytest.fixture
def port(run: Path) -> Iterator[int]:
    rewrite(run)
    (run / "deeper").mkdir()
    (run / "deeper" / "file").write_text("no")
    with server(run, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving.server_address[1]
        serving.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    line.request(method, path, headers=headers)
    answer = line.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    line.close()
    return found


def test_perfetto_may_read_the_trace_and_nobody_else(run: Path, port: int) -> None:
    code, headers, body = ask(port, "/timeline.json")
    assert (code, body) == (200, (run / "timeline.json").read_bytes())
    assert headers["Access-Control-Allow-Origin"] == UI
    code, headers, _ = ask(port, "/timeline.json", "OPTIONS")
    assert (code, headers["Access-Control-Allow-Private-Network"]) == (204, "true")
    assert ask(port, "/")[2] == (run / "timeline.html").read_bytes()
    for path in ("/deeper/file", "/../config.json", "/%2e%2e/config.json", "/deeper%2ffile", "/nothing", "/deeper"):
        assert ask(port, path)[0] == 404, path
    assert ask(port, "/timeline.json", Host="evil.example")[0] == 403
    assert ask(port, "/timeline.json", "POST")[0] == 501


def test_a_pipe_in_the_folder_is_not_waited_for(run: Path, port: int) -> None:
    os.mkfifo(run / "pipe.json")
    assert ask(port, "/pipe.json")[0] == 404
    assert ask(port, "/timeline.json", "HEAD")[1]["Content-Length"] == str((run / "timeline.json").stat().st_size)


def test_a_port_that_is_taken_is_a_line_with_the_remedy(run: Path, port: int) -> None:
    with pytest.raises(ValueError, match=r"cannot be had .*timeline\.html"):
        server(run, port)


def test_opening_says_the_address_and_ends_with_an_interrupt(run: Path, capsys, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("bench.timeline.serve.PORT", 0)
    monkeypatch.setattr("bench.timeline.serve.webbrowser.open", opened.append)
    monkeypatch.setattr("bench.timeline.serve.server", lambda folder: server(folder, 0))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.timeline.serve.Server.serve_forever", interrupt)
    serve(run, browser=False)
    assert link() in capsys.readouterr().out
    assert opened == []
    serve(run, browser=True)
    assert opened == [link()] == [f"{UI}/#!/?url=http://127.0.0.1:9001/timeline.json"]
