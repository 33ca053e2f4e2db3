"""The dashboard over a sweep: a grid with verdicts as they come, lines that end with their rank, what is said at the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Page, expect

from bench.command.printed.cell_verdict import cell_verdicts
from bench.command.printed.summary import in_words
from bench.dashboard import page as pages
from bench.dashboard import server, view
from bench.dashboard.about import RUNNING, RunCard
from bench.dashboard.board import SWEEP, VERDICT, RunBoard, whole
from bench.dashboard.process import listen
from bench.dashboard.verdicts import CellVerdicts
from bench.results import sweep_file
from bench.results.cells import Cell, cells
from bench.results.live.curves import curves
from bench.results.live.history import RunHistory
from bench.results.runfolder import CONFIG, EVENTS, find_runs
from bench.validate import Judgement, judge_cells
from ddp.core.messages import commands, events
from ddp.core.messages.run_bounds import RunHeader
from ddp.process.codec import Record, encode
from tests.bench.dashboard.dashboards import begin, line, messages, progress, serving
from tests.bench.references import FIVE, baselines, cell
from tests.bench.results.test_faults import SPEC, bereft
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec, write_run
from tests.browser import browser  # noqa: F401
from tests.browser import page as tab  # noqa: F401
from tests.slow import slow

VALUES = (0.970, 0.972, 0.974)


def folded(records: list[Record]) -> RunHistory:
    history = RunHistory()
    for record in records:
        history.add(record)
    return history


def test_no_curve_goes_on_after_its_rank_is_lost() -> None:
    """Its share went on at 0, and its memory as it was."""
    records = bereft(events.Lost(0.0, 1, "gone"), "gone")
    dropped = next(place for place, record in enumerate(records) if isinstance(record, commands.Drop))
    last = max(getattr(record, "at", 0.0) for record in records)
    late = [events.Memory(last + 0.1 * k, 1, 1 << 20, 1.0 + k) for k in range(3)]
    history = folded([*records, *late])
    shown = curves(history)
    lost = history.run.ranks[1].lost
    assert lost is not None
    gone = int((lost - LAUNCHED) / shown["width_s"]) + 1
    assert dropped
    assert gone < len(shown["epoch"])
    for name, values in shown["ranks"]["1"].items():
        assert values[gone:] == [None] * len(values[gone:]), name
    assert all(value is not None for value in shown["ranks"]["0"]["share"][gone - 1 : gone])


def test_what_is_emulated_or_oversubscribed_is_said_from_the_start() -> None:
    texts = ["emulated devices: ranks run at speeds 1/0.4", "oversubscribed: 4 ranks share 2 cores"]
    header = RunHeader(LAUNCHED, LAUNCHED, {"warnings": texts}, {}, {})
    card = RunCard("mlp/nccl_cadence/it", RUNNING, {"model": "mlp"})
    assert view.notes(card, folded([header])) == texts
    assert view.notes(card, folded([replace(header, spec={"warnings": 7})])) == []


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    for mode in ("solo", "nccl_sync"):
        cell(root, mode, VALUES)
    spec = make_spec("cpu_async")
    write_run(root, spec, make_metrics(spec, status="failed", error="boom"))
    return root


def all_pass(every: Sequence[Cell]) -> dict[str, dict[str, str]]:
    return {each.name: {"name": "PASS", "words": each.label} for each in every}


def test_all_cells_are_judged_together_and_again_when_a_run_is_new(sweep: Path) -> None:
    asked: list[list[str]] = []

    def judge(every: Sequence[Cell]) -> dict[str, dict[str, str]]:
        asked.append([each.label for each in every])
        if len(asked) > 1:
            raise ValueError("damaged")
        return all_pass(every)

    board, verdicts = RunBoard(sweep), CellVerdicts(judge)
    while board.refresh([]):
        pass
    for key, verdict in verdicts.next(board.finished):
        board.enter(key, verdict)
    assert [sorted(labels) for labels in asked] == [["cpu_async ×2", "nccl_sync ×2", "solo"]]
    assert verdicts.next(board.finished) == []
    shown = {piece.key: json.loads(piece.text) for piece in board.since(0, []) if piece.kind == VERDICT}
    assert len(shown) == 7
    assert all(verdict["words"].startswith(key.split("/")[1]) for key, verdict in shown.items())
    write_run(sweep, make_spec("nccl_sync", seed=9))
    while board.refresh([]):
        pass
    again = verdicts.next(board.finished)
    assert {(verdict["name"], verdict["words"]) for _, verdict in again} == {("REFUSED", "ValueError: damaged")}
    assert verdicts.next(board.finished) == []


def test_verdicts_are_those_of_one_validation_of_all_cells(sweep: Path, tmp_path: Path) -> None:
    every = cells(find_runs(sweep)[0])
    asked: list[int] = []

    def counted(some: Sequence[Cell], *others: object) -> Judgement:
        asked.append(len(some))
        return judge_cells(some, *others)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.validate.judge_cells", counted)
        found = cell_verdicts(every, tmp_path)
    assert asked == [len(every)]
    assert next(found[each.name]["name"] for each in every if each.about.mode == "cpu_async") == "FAIL"


def test_a_page_that_is_written_has_the_verdicts(sweep: Path) -> None:
    assert sum(piece.kind == VERDICT for piece in whole(sweep, judge=all_pass)) == 7
    assert not any(piece.kind == VERDICT for piece in whole(sweep))


def test_what_is_judged_is_what_is_read_of_the_folder(tmp_path: Path) -> None:
    """Without its configuration every run was refused, and shown as passed."""
    folder = write_run(tmp_path / "runs", make_spec("solo"))
    (folder / CONFIG).write_text(json.dumps({"run_id": make_spec("solo").run_id}))
    board = RunBoard(tmp_path / "runs")
    while board.refresh([]):
        pass
    ((run, _),) = board.finished.values()
    assert [run] == find_runs(tmp_path / "runs")[0]
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "it.json").write_text("{")
    (one,) = cells([run])
    assert cell_verdicts([one], tmp_path / "base")[one.name]["name"] == "REFUSED"
    refused = [each for each in judge_cells([one], [], tmp_path / "base").verdicts if each.name == "REFUSED"]
    assert in_words(refused)[0] == "cannot be compared"


def test_the_words_are_those_of_the_terminal(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    (good,) = cells(find_runs(cell(tmp_path / "good", "nccl_sync", FIVE[:3]))[0])
    verdict = cell_verdicts([good], base)[good.name]
    assert verdict == {"name": "INCONCLUSIVE", "words": "no check failed; 3 seeds cannot decide yet, 2 more can"}
    (bad,) = cells(find_runs(cell(tmp_path / "bad", "nccl_sync", tuple(v - 0.4 for v in VALUES)))[0])
    assert cell_verdicts([bad], base)[bad.name]["name"] == "FAIL"


def test_a_stream_brings_verdicts_and_what_came_last(tmp_path: Path) -> None:
    """A run that ended well ended in a red `no connection`: its end was not sent."""
    cell(tmp_path, "solo", VALUES)
    listening = listen("127.0.0.1", 0)
    app = server.app(tmp_path, poll_s=0.05, judge=all_pass)
    runner = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))
    app.state.closing = lambda: runner.should_exit
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        stream = messages(listening.getsockname()[1])
        seen = list(islice(stream, 7))
        assert [message.kind for message in seen].count("verdict") == 3
        write_run(tmp_path, make_spec("nccl_sync"))
        runner.should_exit = True
        rest = [message.kind for message in stream]
        assert "row" in rest, "what came last is seen"
    finally:
        runner.should_exit = True
        thread.join(20)
        listening.close()


def drawn(tab: Page, title: str, what: str, attribute: str) -> list[str]:  # noqa: F811
    """An attribute, or else the text, of parts of the chart with this title."""
    return tab.evaluate(  # type: ignore[no-any-return]
        """([title, what, attribute]) => [...document.querySelectorAll("#detail section")]
        .filter((card) => card.innerText.startsWith(title)).flatMap((card) => [...card.querySelectorAll(what)])
        .map((part) => (attribute ? part.getAttribute(attribute) : part.textContent))""",
        [title, what, attribute],
    )


@pytest.mark.parametrize("width", [1280, *slow(400)])
def test_the_page_of_a_sweep(tab: Page, sweep: Path, tmp_path: Path, width: int) -> None:  # noqa: F811
    write_run(sweep / "lost", SPEC, make_metrics(SPEC, bereft()))
    levels = iter((0.99, 0.995, *[0.9999] * 99))
    records = [
        replace(record, metric_sum=next(levels) * record.samples) if isinstance(record, events.Evaluated) else record
        for record in bereft()
    ]
    (folder,) = (sweep / "lost" / SPEC.model / SPEC.mode).iterdir()
    (folder / EVENTS).write_bytes(b"".join(encode(record) + b"\n" for record in records))
    (tmp_path / "it.html").write_text(pages.exported(whole(sweep), sweep))
    tab.set_viewport_size({"width": width, "height": 900})
    key = f"lost/{folder.relative_to(sweep / 'lost').as_posix()}"
    tab.goto(f"{(tmp_path / 'it.html').as_uri()}#run={key}")
    grid = tab.inner_text("#sweep")
    for words in ("8 of 8 runs are over", "3 ok", "1 failed", "accuracy 0.9720"):
        assert words in grid, words
    assert width == 400 or "nccl_sync ×2" in grid
    boxes = tab.evaluate("[...document.querySelectorAll('#sweep td')].map((e) => e.getBoundingClientRect().toJSON())")
    widths = [box["width"] for box in boxes]
    assert max(widths) < 1.1 * min(widths), "cells of a grid are as wide as each other"
    beside = [(a, b) for a, b in pairwise(boxes) if a["top"] == b["top"]]
    assert beside
    assert all(a["right"] <= b["left"] + 1 for a, b in beside), "no cell lies on another"
    cut = "document.querySelector('table.ranks').scrollWidth - document.querySelector('.card .scroll').clientWidth"
    assert width > 400 or tab.evaluate(cut) <= 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    paths = drawn(tab, "Anchor", "svg[role=img] path", "d")
    ends = [float(path.rpartition("H")[2]) for path in paths if "H" in path]
    assert ends[1] < ends[0] - 10, "the line of rank 1 ends where it was lost"
    levels = [float(text) for text in drawn(tab, "Evaluation", "svg text[text-anchor=end]", "") if text[0].isdigit()]
    assert len(levels) > 1
    assert max(levels) <= 1
    tab.click("#sweep .gridcell >> nth=0")
    expect(tab.locator("#detail")).to_contain_text("Comparison", timeout=20_000)


def test_the_end_of_what_went_well_is_not_red(tab: Page, tmp_path: Path) -> None:  # noqa: F811
    """A server that is gone is no news when all runs are over; with one in progress it is."""
    cell(tmp_path / "over", "solo", VALUES)
    for root, kind, words in (("over", "chip ", "the runs are over"), ("going", "chip off", "no connection")):
        with serving(tmp_path / root) as port:
            if root == "going":
                writer = begin(tmp_path / root)
                (writer.path / EVENTS).write_bytes(line(progress(1.0)))
            tab.goto(f"http://127.0.0.1:{port}/")
            tab.wait_for_selector("#link.live")
            tab.wait_for_selector("#runs li")
            if root == "going":
                tab.route("**/events*", lambda route: route.abort())
                tab.evaluate("state.source.onerror()")
                assert words in tab.inner_text("#link")
                assert tab.get_attribute("#link", "class") == kind
                continue
        # Not `wait_for_function`: looking a second time needs `eval`, which the page's policy forbids.
        expect(tab.locator("#link")).to_contain_text("over")
        assert words in tab.inner_text("#link")
        assert tab.get_attribute("#link", "class") == kind


def test_records_of_a_run_make_all_its_lines() -> None:
    """So that what ends a line is the loss of its rank alone."""
    shown = curves(folded(make_records(make_spec())))
    assert all(values["share"][-1] is not None for rank, values in shown["ranks"].items() if rank != "all")


def test_what_a_sweep_plans_is_shown_while_its_command_lives(sweep: Path, tab: Page) -> None:  # noqa: F811
    board = RunBoard(sweep)
    board.refresh([])
    assert not [piece for piece in board.since(0, []) if piece.kind == SWEEP]
    sweep_file.write(sweep, 12, 2, 30.0)
    board.refresh([])
    (shown,) = (json.loads(piece.text) for piece in board.since(0, []) if piece.kind == SWEEP)
    assert shown == {"planned": 12, "over": 2, "seconds": 30.0}
    (sweep / "page.html").write_text(pages.exported(whole(sweep), sweep), encoding="utf-8")
    tab.goto((sweep / "page.html").as_uri())
    assert "2 of 12 planned runs are over" in tab.inner_text("#sweep")
    assert "5 min left" in tab.inner_text("#sweep")
    sweep_file.remove(sweep)
    board.refresh([])
    assert [piece.text for piece in board.since(0, []) if piece.kind == SWEEP] == ["null"]


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 2**22 + 7},
        {"over": 13},
        {"planned": "many"},
        {"seconds": 10**400},
        {"pid": None},
        {"host": "another", "pid": 1},
    ],
)
def test_a_sweep_that_ended_without_a_word_is_none(tmp_path: Path, changes: dict[str, object]) -> None:
    sweep_file.write(tmp_path, 12, 2, None)
    file = tmp_path / sweep_file.SWEEP
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    assert (sweep_file.read(tmp_path) is None) == ("host" not in changes), "its lease is young"
    sweep_file.write(tmp_path, 12, 2, None)
    for text in (file.read_text().replace("12", "1e999", 1), "[" * 10**6, "[]", "{"):
        file.write_text(text)
        assert sweep_file.read(tmp_path) is None
    sweep_file.remove(tmp_path)
