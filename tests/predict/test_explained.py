"""Where the time of a run went: nothing is lost or counted twice, and ranks are blamed for what they cost."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.exitcodes import Exit
from bench.base.number_format import rate
from bench.command.cli import dispatch
from bench.results.analysis.explained import COMPUTE, INPUT, SLOWNESS, explained, slowness
from bench.results.analysis.lateness import WAITING_FOR, with_arrivals
from bench.results.analysis.slow_links import BOUND_BY, bound, divide
from bench.results.analysis.stream import Slices, sort
from bench.results.runfolder import EVENTS, METRICS
from ddp.core.anomalies.slowness import SlowRank
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Finished, Slice
from ddp.core.network.links import parse
from tests.bench.streams import LAUNCHED, MODES, make_records, make_spec

SPREADS = st.lists(st.floats(0.001, 0.05), min_size=2, max_size=4)


@settings(max_examples=40, deadline=None)
@given(mode=st.sampled_from(sorted(MODES)), step_s=SPREADS)
def test_causes_sum_to_the_rank_seconds(mode: str, step_s: list[float]) -> None:
    spec = make_spec(mode, 1 if mode == "solo" else len(step_s))
    records = make_records(spec, step_s=tuple(step_s[: spec.world_size]))
    end = max(record.at for record in records if isinstance(record, Finished))
    run = explained(sort(records, LAUNCHED), spec.world_size, LAUNCHED, end)
    assert run is not None
    assert run.rank_seconds == pytest.approx(spec.world_size * (end - LAUNCHED), rel=1e-9)
    assert sum(cause.seconds for cause in run.causes) == pytest.approx(run.rank_seconds, rel=1e-9)
    assert sum(cause.share for cause in run.causes) == pytest.approx(1, rel=1e-9)
    for rank in range(spec.world_size):
        mine = sum(cause.seconds for cause in run.causes if cause.rank == rank)
        assert mine == pytest.approx(end - LAUNCHED, rel=1e-9)
    for cause in run.causes:
        if cause.without is not None:
            left = (run.rank_seconds - cause.seconds) / spec.world_size
            assert cause.without == pytest.approx(run.samples / left, rel=1e-9)
            assert cause.without >= run.samples_per_s


def test_waiting_is_counted_again_from_the_slices() -> None:
    """In synchronous training, by the begins of exchanges alone: whoever came last was waited for."""
    spec = make_spec("nccl_sync", 3)
    records = make_records(spec, step_s=(0.01, 0.02, 0.04))
    meetings = defaultdict[int, dict[int, float]](dict)
    for record in records:
        if isinstance(record, Slice) and record.kind == "exchange":
            meetings[record.seq][record.rank] = record.at
    waited = defaultdict[tuple[int, str], float](float)
    for came in meetings.values():
        last = max(came, key=lambda rank: came[rank])
        for rank, at in came.items():
            waited[rank, f"{WAITING_FOR}{last}"] += came[last] - at
    run = explained(sort(records, LAUNCHED), 3, LAUNCHED, 0.0)
    assert run is not None
    told = {(cause.rank, cause.cause): cause.seconds for cause in run.causes if cause.cause.startswith(WAITING_FOR)}
    assert told == pytest.approx({key: value for key, value in waited.items() if value > 0})
    assert run.slow_ranks[0].rank == 2


def test_input_and_slowness_are_parts_of_training() -> None:
    spec = make_spec("nccl_sync", 2)
    records = make_records(spec, step_s=(0.01, 0.03))
    run = explained(sort(records, LAUNCHED), 2, LAUNCHED, 0.0)
    assert run is not None
    slices = [record for record in records if isinstance(record, Slice)]
    for rank in range(2):
        spent = {
            kind: sum(s.seconds for s in slices if (s.rank, s.kind) == (rank, kind)) for kind in ("data", "forward")
        }
        own = {cause.cause: cause.seconds for cause in run.causes if cause.rank == rank}
        assert own[INPUT] == pytest.approx(spent["data"])
        assert own[COMPUTE] + own.get(SLOWNESS, 0.0) == pytest.approx(spent["forward"] * 3, rel=0.05)
    slow = {cause.rank: cause.seconds for cause in run.causes if cause.cause == SLOWNESS}
    assert set(slow) == {1}
    assert slow[1] == pytest.approx(2 / 3 * 0.9 * 0.03 * 90, rel=0.1)


def test_what_a_link_that_became_slow_costs_is_its_rank_s() -> None:
    """By hand: of the collectives since then, 19 of 20 parts. All counted as communicating, and other ranks came first."""
    spec = make_spec("nccl_sync", 3)
    stream = sort(make_records(spec), LAUNCHED)
    wire = stream.slices.stop - stream.slices.wire_start
    exchange = stream.slices.kind == "exchange"
    since = float(np.median(stream.slices.wire_start[exchange]))
    later = float(wire[exchange & (stream.slices.wire_start >= since)].sum())
    stream.figures.slow.ranks.append(SlowRank(2, "link", 20.0, since, since, 3))
    run = explained(stream, 3, LAUNCHED, 0.0)
    assert run is not None
    own = [cause.seconds for cause in run.causes if cause.cause == "communicating over the slow link of rank 2"]
    assert len(own) == 3
    assert sum(own) == pytest.approx(later * 19 / 20)
    assert run.slow_ranks[0].rank == 2
    assert run.notes[0].startswith("rank 2 took 20.0 times as long")
    assert sum(cause.seconds for cause in run.causes) == pytest.approx(run.rank_seconds, rel=1e-9)


def test_a_slow_link_costs_nothing_once_its_rank_is_lost() -> None:
    """It was blamed for the collectives of the others until the end."""
    spec = make_spec("nccl_sync", 3)
    stream = sort(make_records(spec), LAUNCHED)
    begins = stream.slices.wire_start[stream.slices.kind == "exchange"]
    since, lost = np.quantile(begins, [0.25, 0.5]).tolist()
    spent = []
    for moves in ([], [(lost, Drop(2, "gone"))]):
        told = replace(stream, moves=moves)
        told.figures.slow.ranks[:] = [SlowRank(2, "link", 20.0, since, since, 3)]
        run = explained(told, 3, LAUNCHED, 0.0)
        assert run is not None
        spent.append(sum(each.seconds for each in run.causes if each.cause.endswith("slow link of rank 2")))
    assert spent[1] == pytest.approx(spent[0] / 3, rel=0.1)


@pytest.mark.parametrize(
    ("words", "rule", "whole_s", "lost_s"),
    [
        ("1ms/1gbit 2+0-1:30ms/1gbit", "2+0-1:wan_1g_30ms", 4 * 0.03, 4 * 0.029),
        ("1+2:30ms/1gbit", "1+2:wan_1g_30ms", 4 * 0.03, 4 * 0.03),
        ("1ms/1gbit", None, 0, 0),
    ],
)
def test_the_link_that_bounds_a_collective(words: str, rule: str | None, whole_s: float, lost_s: float) -> None:
    """By hand: a ring of three ranks takes four rounds, each as long as the slowest link's latency."""
    links = parse(words.split(), 3)
    assert links is not None
    found = bound(links, (0, 1, 2), 0)
    assert (None if found is None else str(found[0])) == rule
    if found is not None:
        assert found[1:] == pytest.approx((whole_s, lost_s))
    stream = sort(make_records(make_spec("nccl_sync", 3)), LAUNCHED)
    run = explained(stream, 3, LAUNCHED, 0.0, links)
    assert run is not None
    assert {cause.cause for cause in run.causes if "bounded" in cause.cause} == (
        {f"{BOUND_BY}{rule}"} if rule else set()
    )
    assert any(f"link {rule} bounds collectives" in note for note in run.notes) == bool(rule)


def test_a_slow_link_costs_half_as_much_in_half_an_all_reduce() -> None:
    """A reduce-scatter was charged like the all-reduce before it."""
    links = parse(["20ms/1gbit", "2+0-1:30ms/1gbit"], 3)
    whole = [Slice(1.0, rank, "exchange", 4 * 0.03, 1) for rank in range(3)]
    half = [Slice(2.0, rank, "exchange", 2 * 0.03, 2) for rank in range(3)]
    rows = [{"communicating": 6 * 0.03} for _ in range(3)]
    divide(rows, Slices.of([*whole, *half]), Slices.of([]), (), links)
    assert [row["communicating"] for row in rows] == pytest.approx([6 * 0.02] * 3)


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.integers(1, 10**6)), min_size=1, max_size=9), st.floats(0.1, 10))
def test_the_median_rank_is_not_slow(ranks: list[tuple[float, int]], scale: float) -> None:
    compute, samples = [spent for spent, _ in ranks], [count for _, count in ranks]
    slow = slowness(compute, samples)
    assert all(0 <= lost <= spent for lost, spent in zip(slow, compute, strict=True))
    assert sum(lost <= 1e-9 * spent for lost, spent in zip(slow, compute, strict=True)) >= (len(ranks) + 1) // 2
    scaled = slowness([spent * scale for spent in compute], samples)
    assert scaled == pytest.approx([lost * scale for lost in slow], rel=1e-6, abs=1e-6)


def test_hidden_waiting_is_told_by_the_begins_of_backward_passes() -> None:
    own = [(0, 0.0, 1.0), (0, 2.0, 1.0), (1, 0.4, 0.6), (1, 5.0, 1.0)]
    slices = with_arrivals(Slices.of([Slice(at, rank, "backward", seconds) for rank, at, seconds in own]))
    exchange = slices.kind == "exchange"
    waits = (slices.wire_start - slices.start)[exchange].tolist()
    assert waits == pytest.approx([0.4, 1.0, 0.0, 0.0])  # the second pass had ended before the other one began
    lengths = np.bincount(slices.rank, weights=slices.stop - slices.start)
    assert lengths.tolist() == pytest.approx([2.0, 1.6])


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: Callable[..., int]) -> None:
    assert quiet("model=logistic", "mode=nccl_sync", "train.epochs=1", f"output={tmp_path}") == 0
    folder = next(tmp_path.glob("*/*/w2-*"))
    file = tmp_path / "explained.json"
    assert dispatch(["explain", str(folder), "--json", str(file)]) == Exit.OK
    said, body = capsys.readouterr().out, json.loads(file.read_text())
    assert f"{body['samples']:,} samples: {rate(body['samples_per_s'])} samples/s" in said
    assert sum(cause["seconds"] for cause in body["causes"]) == pytest.approx(body["rank_seconds"], rel=1e-9)
    assert body["samples"] == json.loads((folder / "metrics.json").read_text())["samples"]
    assert dispatch(["explain", str(tmp_path / "nothing")]) == Exit.USAGE
    capsys.readouterr()
    torn(Path(shutil.copytree(folder, tmp_path / "torn")), capsys)
    trace = tmp_path / "a trace.json"
    trace.write_text("{}", encoding="utf-8")
    spaced = folder.rename(tmp_path / "a run")
    for path, remedy in (
        (trace, f"predict RUN_FOLDER --steps '{trace}'"),
        (spaced / "timeline.json", f"explain '{spaced}'"),
    ):
        assert dispatch(["explain", str(path)]) == Exit.USAGE
        assert remedy in capsys.readouterr().err


def torn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished run whose last line is torn was cut and is refused; without a result it was killed: explained so far."""
    events, verbs = folder / EVENTS, (["timeline"], ["explain"], ["predict", "--output", "none"])
    events.write_bytes(events.read_bytes()[:-9])
    for verb in verbs:
        assert dispatch([*verb, str(folder)]) == Exit.USAGE
        assert "that the run had at its end: it was cut" in capsys.readouterr().err
    (folder / METRICS).unlink()
    assert dispatch(["explain", str(folder)]) == Exit.OK
    assert "these are its times so far: it was killed before its end; it has no checkpoint" in capsys.readouterr().out
    (folder / "checkpoints" / "000001").mkdir(parents=True)
    assert dispatch(["predict", str(folder), "--output", "none"]) == Exit.USAGE
    assert f"go on with it: python -m bench resume={folder}" in capsys.readouterr().err
