"""`timeline.html`: what it holds, that it needs nothing else, and that it can be looked around in."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Page

from bench.results.analysis.idle import gaps
from bench.results.analysis.stream import sort
from bench.timeline import begin_timeline, launched_at, make_trace, write_timeline
from bench.timeline.chrome_trace import Span, Trace, nest
from bench.timeline.html import PARTS, SCRIPTS, content, page
from bench.timeline.lanes import CATEGORIES
from bench.timeline.packed import Interner, longest, pack, varints, zigzag
from tests.bench.streams import LAUNCHED, make_records, make_spec
from tests.bench.timeline.trace_rules import violations
from tests.browser import browser  # noqa: F401
from tests.browser import page as tab  # noqa: F401

HOSTILE = "</script><script>alert(1)</script><!--<b>"


def decoded(data: bytes) -> list[int]:
    """LEB128, the slow way."""
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    return values


def unpacked(packed: dict, names: Interner, facts: Interner, tick: int) -> list[Span]:
    """What `page/data.js` makes of a lane."""
    columns = [decoded(base64.b64decode(column)) for column in packed["columns"]]
    assert {len(column) for column in columns} == {packed["n"]}
    known, said = list(names.rows), list(facts.rows)
    begin, seq, spans = 0, -1, []
    for ahead, length, name, fact, step in zip(*columns, strict=True):
        begin += ahead
        seq += -(step + 1) // 2 if step % 2 else step // 2
        args = json.loads(said[fact]) if said[fact] else {}
        args |= {"seq": seq} if seq >= 0 else {}
        spans.append((begin * tick, (begin + length) * tick, *known[name], args or None))
    return spans


@given(st.lists(st.integers(0, 2**53)))
def test_numbers_survive_packing(values: list[int]) -> None:
    assert decoded(varints(np.array(values, np.int64))) == values


times = st.integers(0, 10**7).map(lambda tick: tick * 100)
facts = st.one_of(st.none(), st.fixed_dictionaries({"seq": st.integers(0, 99)}, optional={"bytes": st.integers(0, 9)}))


@given(st.lists(st.tuples(times, times, st.text(max_size=3), st.sampled_from(CATEGORIES), facts)))
def test_spans_survive_packing(drawn: list[tuple]) -> None:
    spans = nest([(begin, begin + length, *rest) for begin, length, *rest in drawn])
    names, known = Interner(), Interner()
    assert unpacked(pack(spans, names, known, 100), names, known, 100) == spans


def test_zigzag_keeps_small_numbers_small() -> None:
    assert zigzag(np.array([0, -1, 1, -2, 2])).tolist() == [0, 1, 2, 3, 4]


def test_of_too_many_spans_the_longest_are_kept() -> None:
    lanes = {(0, 1): [(n, n + length, "x", "", None) for n, length in enumerate([5, 1, 9, 7, 2, 8])], (1, 1): []}
    kept, left_out = longest(lanes, 4)
    assert [span[1] - span[0] for span in kept[0, 1]] == [5, 9, 7, 8]
    assert left_out == 2
    assert longest(lanes, 6) == (lanes, 0)


def test_spans_of_one_length_are_no_more_than_the_page_holds() -> None:
    """All of them were kept: 200,000 spans of a microsecond made a page twice as large as its limit."""
    lanes = {(0, lane): [(n, n + length, "x", "", None) for n, length in enumerate([3, 3, 9, 3])] for lane in (1, 2)}
    kept, left_out = longest(lanes, 5)
    assert sorted(span[1] - span[0] for spans in kept.values() for span in spans) == [3, 3, 3, 9, 9]
    assert left_out == 3


def synthetic(mode: str = "nccl_cadence", **changes: object) -> tuple[Trace, str]:
    spec = make_spec(mode, **changes)
    stream = sort(make_records(spec, step_s=(0.01, 0.014)[: spec.world_size]), LAUNCHED)
    idle = gaps(stream)
    trace = make_trace(stream, spec, LAUNCHED, idle)
    return trace, page(trace, spec, idle)


def test_a_page_of_80_000_spans_is_under_one_and_a_half_megabytes() -> None:
    spec = make_spec("nccl_sync", 8, epochs=7)
    stream = sort(make_records(spec, windows=32, steps=6), LAUNCHED)
    idle = gaps(stream)
    trace = make_trace(stream, spec, LAUNCHED, idle)
    assert 75_000 < sum(map(len, trace.lanes().values())) < 85_000
    assert len(page(trace, spec, idle).encode()) < 1_000_000


def test_the_page_needs_nothing_else_and_what_runs_say_is_harmless() -> None:
    _, text = synthetic(model=HOSTILE)
    assert HOSTILE not in text
    assert text.count("</script>") == 1 + len(SCRIPTS)
    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert re.findall(r"\b(?:src|href)=(?!\"data:,\")", text) == []
    body = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(body)["run"]["model"] == HOSTILE


def test_every_category_has_a_colour() -> None:
    style = (PARTS / "page.css").read_text()
    assert [name for name in CATEGORIES if f"--c-{name}:" not in style] == []
    trace, _ = synthetic()
    assert {span[3] for spans in trace.lanes().values() for span in spans} <= set(CATEGORIES)


def test_the_longest_gaps_and_the_sums_of_all_are_listed() -> None:
    spec = make_spec("nccl_cadence")
    stream = sort(make_records(spec, step_s=(0.01, 0.014)), LAUNCHED)
    idle = gaps(stream)
    said = content(make_trace(stream, spec, LAUNCHED, idle), spec, idle)
    assert sum(row[4] for row in said["sums"]) == pytest.approx(sum(gap.seconds for gap in idle), abs=1e-4)
    assert said["gaps_in_all"] == len(said["gaps"]) == sum(gap.seconds >= 1e-3 for gap in idle)
    assert "late rank 1: compute" in said["causes"]


def test_a_run_leaves_a_trace_from_its_beginning(tmp_path: Path) -> None:
    begin_timeline(tmp_path, make_spec(), LAUNCHED)
    said = json.loads((tmp_path / "timeline.json").read_text())
    assert violations(said) == []
    assert len(said["traceEvents"]) > 10
    assert launched_at(tmp_path) == LAUNCHED
    (tmp_path / "timeline.json").write_text('{"otherData": {"launched": "soon"}')
    assert launched_at(tmp_path) is None


@pytest.fixture
def shown(tab: Page, tmp_path: Path) -> Iterator[Page]:  # noqa: F811
    """The page in a browser. It must say nothing on the console and ask for nothing."""
    spec = make_spec("nccl_cadence", model=HOSTILE)
    write_timeline(tmp_path, make_records(spec, step_s=(0.01, 0.014)), spec, LAUNCHED, picture=False)
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: said.append("dialog"))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((tmp_path / "timeline.html").as_uri())
    yield tab
    assert said == []
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}


def view(tab: Page) -> list[float]:  # noqa: F811
    found: list[float] = tab.evaluate("[view.from, view.to]")
    return found


def drawn(tab: Page) -> str:  # noqa: F811
    return str(tab.evaluate("draw(), canvas.toDataURL()"))


def test_wheel_keys_and_drag_change_what_is_seen(shown: Page) -> None:
    box = shown.locator("#canvas").bounding_box()
    assert box is not None
    at = box["x"] + box["width"] / 2, box["y"] + 40
    states, pictures = [view(shown)], [drawn(shown)]
    shown.mouse.move(*at)
    for act in (
        lambda: shown.mouse.wheel(0, -300),
        lambda: shown.keyboard.press("w"),
        lambda: shown.keyboard.press("d"),
        lambda: (shown.mouse.down(), shown.mouse.move(at[0] + 90, at[1]), shown.mouse.up()),
    ):
        act()
        while view(shown) == states[-1]:  # the page's policy forbids the `eval` of `wait_for_function`
            shown.wait_for_timeout(10)
        states.append(view(shown))
        pictures.append(drawn(shown))
    sizes = [to - begin for begin, to in states]
    assert sizes[0] > sizes[1] > sizes[2] == pytest.approx(sizes[3])
    assert sizes[4] < sizes[3] / 5
    assert len(set(pictures)) == len(pictures)
    shown.dblclick("#canvas", position={"x": 600, "y": 60})
    assert view(shown) == pytest.approx(states[0])


def test_a_long_startup_is_left_out_of_the_first_look(tab: Page, tmp_path: Path) -> None:  # noqa: F811
    spec = make_spec("nccl_cadence")
    records = make_records(spec)
    for early, at_first in ((0.0, True), (60.0, False)):
        write_timeline(tmp_path, records, spec, LAUNCHED - early, picture=False)
        tab.goto((tmp_path / "timeline.html").as_uri())
        assert (view(tab)[0] < 0) is at_first
        end = tab.evaluate("END")
        tab.click("#training")
        assert early + 1 < view(tab)[0] < early + 1.2
        assert view(tab)[1] == pytest.approx(end, rel=0.05)
        tab.click("#whole")
        assert view(tab)[0] < 0
        launched = re.search(r"launched (.*) UTC", tab.inner_text("#about"))
        assert launched is None or re.fullmatch(r"[-\d]+ [:\d]+", launched[1])


def test_pointing_at_a_span_tells_of_it(shown: Page) -> None:
    row = "bands.find((band) => band.kind === 'spans' && band.lane.name === 'compute' && band.process.pid === 1)"
    shown.evaluate("look(1.9, 2.0)")
    x, y = shown.evaluate(
        f"(({{ lane, row, top }}) => {{ const i = row.find((i) => lane.start[i] > 1.92);"
        f" return [x((lane.start[i] + lane.stop[i]) / 2), top + 8 - scroller.scrollTop]; }})({row})"
    )
    box = shown.locator("#canvas").bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + x, box["y"] + y)
    shown.wait_for_selector("#hover:not([hidden])", timeout=5000)
    said = shown.inner_text("#hover")
    assert said.startswith("step\n")
    assert "rank 1" in said


def test_filters_hide_and_the_table_sorts_and_leads_there(shown: Page) -> None:
    before, whole = drawn(shown), view(shown)
    bands = "bands.filter((band) => band.process.pid === 1).length"
    assert shown.evaluate(bands) > 0
    lengths = "[...document.querySelectorAll('#gaps tbody tr')].map((row) => +row.cells[3].textContent)"
    ranks = "[...new Set([...document.querySelectorAll('#gaps tbody tr')].map((row) => row.cells[0].textContent))]"
    assert shown.evaluate(ranks) == ["0"]
    shown.uncheck("input[name=ranks][value='0']")
    assert shown.evaluate(ranks) == []
    shown.check("input[name=ranks][value='0']")
    shown.uncheck("input[name=ranks][value='1']")
    assert shown.evaluate(bands) == 0
    shown.uncheck("input[name=categories][value='compute']")
    assert drawn(shown) != before
    found = shown.evaluate(lengths)
    assert found == sorted(found, reverse=True) != sorted(found)
    shown.click("#gaps th:nth-child(4) button")
    assert shown.evaluate(lengths) == sorted(found)
    shown.click("#gaps tbody tr:last-child")
    begin, end = view(shown)
    assert end - begin == pytest.approx(3e-3 * found[0], rel=0.01)
    assert whole[0] <= begin < end <= whole[1]
