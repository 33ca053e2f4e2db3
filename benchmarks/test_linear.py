"""Times the analysis of a finished run over 10,000, 100,000 and 1,000,000 records: core seconds per 100,000 records,
which must not grow with the length of the run. Half of the records are of rounds and epochs, whose number grows with
the run. `tests/bench/results/test_linear.py` counts operations in place of seconds."""

from __future__ import annotations

import gc
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.base.garbage import no_collections
from bench.report import write_report
from bench.results.cells import cells
from bench.results.chain import lines as lines_of
from bench.results.chain import seal_of
from bench.results.journal import Journal
from bench.results.live.history import RunHistory
from bench.results.live.tail import Tail
from bench.results.recompute import plain, result, sealed
from bench.results.runfolder import CONFIG, EVENTS, METRICS, find_runs
from bench.timeline import write_timeline
from bench.validate import judge_cells
from ddp.core.messages.events import Averaged, Slice, Snapshot
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.process.codec import Record
from tests.bench.streams import LAUNCHED, lines, make_records, make_spec

SIZES = (10_000, 100_000, 1_000_000)
WINDOWS = 100
"""Of an epoch."""
A_WINDOW = 20
"""Records of it, about."""
SLOWER = 1.5
"""What a record of the longest run may take of one of the run of a tenth of its length."""
MOST_S = 1.0
"""Aimed at, by every part, for 100,000 records; by the verdict, which reads and analyses them, twice as much."""


def recorded(size: int) -> list[Record]:
    """So many records, about, of a run on two ranks that lay down snapshots."""
    spec = make_spec("cpu_cadence", epochs=max(size // (WINDOWS * A_WINDOW), 1))
    events = [told for record in make_records(spec, windows=WINDOWS, steps=1) for told in _of_snapshots(record)]
    ended = max(record.at for record in events if hasattr(record, "at")) + 0.5
    return [RunHeader(LAUNCHED, LAUNCHED, plain(spec), {}, {}), *events, RunEnd(ended, "ok", None, (), 0)]


def _of_snapshots(record: Record) -> Iterator[Record]:
    """In place of a collective."""
    if isinstance(record, Slice) and record.kind == "exchange":
        record = replace(record, kind="copy", seq=0)
    elif isinstance(record, Averaged):
        yield Snapshot(record.at, record.rank, record.round, record.steps, record.samples)
    yield record


def parts(folder: Path) -> dict[str, float]:
    """Seconds of a core that each part of the work takes."""
    taken: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        gc.collect()  # what came before is not this one's
        began = time.process_time()
        found = work()
        taken[name] = time.process_time() - began
        return found

    spec = make_spec("cpu_cadence", epochs=3)
    with no_collections():  # as at the end of a run
        records = timed("reading", partial(_read, folder))
        metrics = timed("analysis", partial(result, records))
        timed("timeline", partial(write_timeline, folder, records, spec, LAUNCHED))
    (folder / METRICS).write_text(sealed(metrics, seal_of(folder / EVENTS)).model_dump_json())
    timed("chain", lambda: deque(lines_of(folder / EVENTS, seal_of(folder / EVENTS)), maxlen=0))
    del records
    verdicts = timed("verdict", lambda: judge_cells(cells(find_runs(folder)[0]), [], folder / "no baselines")).verdicts
    assert not [verdict for verdict in verdicts if verdict.name == "REFUSED"], verdicts
    timed("report", lambda: write_report(folder, folder / "report"))
    timed("live page", lambda: _followed(folder))
    return taken


def _read(folder: Path) -> list[Record]:
    with Journal(folder / EVENTS) as journal:
        return journal.merge()


def _followed(folder: Path) -> None:
    tail = Tail(folder, RunHistory)
    while tail.read():
        pass


@pytest.mark.timeout(600)
def test_a_record_takes_as_long_in_a_run_of_any_length(benchmark: Any, tmp_path: Path) -> None:
    each: dict[int, dict[str, float]] = {}
    for size in SIZES:
        folder = tmp_path / str(size)
        folder.mkdir()
        records = recorded(size)
        spec = records[0].spec
        config = {name: spec[name] for name in ("run_id", "config_hash")} | spec["config"]
        (folder / CONFIG).write_text(json.dumps(config))
        count = len(records)
        assert 0.9 * size < count < 1.1 * size
        (folder / EVENTS).write_bytes(b"".join(line + b"\n" for line in lines(records)))
        del records
        if size == SIZES[0]:
            parts(folder)  # imports
        rounds = [parts(folder) for _ in range(2 if size < SIZES[-1] else 1)]
        each[size] = {name: min(one[name] for one in rounds) / count * 1e5 for name in rounds[0]}
    benchmark.pedantic(parts, (tmp_path / str(SIZES[1]),), rounds=1)
    benchmark.extra_info.update({f"s_per_100k_of_{size}": each[size] for size in SIZES})
    print("\nseconds of a core for 100,000 records")
    for name in each[SIZES[0]]:
        print(f"{name:10}" + "".join(f"  {size:,}: {each[size][name]:.2f}" for size in SIZES))
    middle, longest = each[SIZES[1]], each[SIZES[2]]
    for name, seconds in longest.items():
        assert seconds < SLOWER * middle[name], f"{name} is not linear in the records"
        most = MOST_S * (1 + (name == "verdict"))
        assert middle[name] < most or seconds < most, f"{name} takes more than it should"
