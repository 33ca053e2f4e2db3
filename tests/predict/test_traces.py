"""What-if figures of a pipeline's trace, traces as step times, and utilisation over windows and bandwidths."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.command.verbs.explain_command import whatif_table
from bench.command.verbs.predict_command import step_times
from bench.predict import traces
from bench.predict.pipeline_trace import whatif
from bench.predict.traces import pipeline_of, read_pipeline, steps_of, traced
from bench.predict.utilisation import UtilisationModel, fit
from benchmarks.published_traces import diloco

FORWARD_S, BACKWARD_S, SEND_S, REST_S = 0.1, 0.2, 0.01, 0.05
BATCHES, STAGES, WIDTH, STEPS = 3, 2, 2, 4


def job(slow: tuple[int, int] | None = None, factor: float = 2.0) -> pd.DataFrame:
    """Operations of a pipeline of two stages, one batch after the other; a worker (rank, stage) computes slower."""
    rows: list[dict[str, Any]] = []
    for step in range(STEPS):
        for rank in range(WIDTH):
            times = _clocked(rank, slow, factor)
            for (kind, number, stage), (start, took) in times.items():
                about = {"dp_rank": rank, "stage": stage, "rank": rank + WIDTH * stage, "step": step, "optype": kind}
                rows.append(about | {"seq_id": number, "start_ts": 100 * step + start, "duration": took, "mc": 0})
    return pd.DataFrame(rows)


def _clocked(rank: int, slow: tuple[int, int] | None, factor: float) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Return start and duration by operation: forward passes down, backward passes up, then what ends a step."""
    times: dict[tuple[str, int, int], tuple[float, float]] = {}
    pace = [factor if slow == (rank, stage) else 1.0 for stage in range(STAGES)]
    free = [SEND_S, SEND_S]
    for stage in range(STAGES):
        times["params-all-gather", 0, stage] = (0.0, SEND_S)
    for batch in range(BATCHES):
        for way, stages, took in (("forward", (0, 1), FORWARD_S), ("backward", (1, 0), BACKWARD_S)):
            first, second = stages
            start = free[first]
            times[f"{way}-compute", batch, first] = (start, took * pace[first])
            sent = start + took * pace[first]
            times[f"{way}-send", batch, first] = times[f"{way}-recv", batch, second] = (sent, SEND_S)
            free[first] = sent
            begin = max(sent + SEND_S, free[second])
            times[f"{way}-compute", batch, second] = (begin, took * pace[second])
            free[second] = begin + took * pace[second]
    last = BATCHES * 2 * (FORWARD_S + BACKWARD_S) * max(factor, 1.0) + 1.0
    for place, kind in enumerate(("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce")):
        for stage in range(STAGES):
            times[kind, 0, stage] = (last + place * REST_S, REST_S if place else 0.0)
    for place, kind in enumerate(("grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer")):
        for stage in range(STAGES):
            times[kind, 0, stage] = (last + (3 + place) * REST_S, REST_S)
    return times


def test_a_job_without_stragglers_loses_nothing() -> None:
    found = whatif(pipeline_of(job(), Path("job")))
    assert found.slowdown == pytest.approx(1.0)
    assert found.measured_s == pytest.approx(
        BATCHES * 2 * (FORWARD_S + BACKWARD_S + SEND_S) + 5 * REST_S - SEND_S, rel=0.1
    )


def test_the_slow_worker_is_named_and_what_it_costs() -> None:
    found = whatif(pipeline_of(job(slow=(1, 0)), Path("job")))
    assert found.slowdown > 1.1
    assert max(found.by_rank, key=found.by_rank.__getitem__) == 1
    assert max(found.by_stage, key=found.by_stage.__getitem__) == 0
    assert found.by_kind["backward-compute"] > found.by_kind["forward-compute"] > found.by_kind["optimizer"] - 1e-9
    assert found.workers == (1,), "rank 1 of stage 0"
    assert found.workers_part > 0.9
    assert found.last_stage_part < 0.1
    page = "\n".join(whatif_table(found))
    assert "without stragglers the job would be at" in page
    assert "| data-parallel rank 1 |" in page


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda table: table.iloc[1:], "is not in every step of every rank"),
        (lambda table: pd.concat([table, table.iloc[:1]]), "it has an operation twice"),
        (lambda table: table.assign(mc=1), "virtual pipeline stages"),
        (lambda table: table.assign(start_ts=table.start_ts.astype(str)), "must be numbers"),
        (lambda table: table.assign(duration=0), "some duration above 0"),
        (lambda table: table.assign(duration=np.nan), "must be finite"),
        (
            lambda table: table[table.optype != "optimizer-clip-main-grad"],
            "it has no optimizer-clip-main-grad 0 of stage 0",
        ),
        (lambda table: table[table.optype != "optimizer"], "it has no optimizer 0 of stage 0"),
        (lambda table: table[table.optype != "forward-send"], "it has no forward-send 0 of stage 0"),
        (lambda table: table.assign(stage=table.stage - 1), "stage must be numbered from 0 up"),
        (lambda table: table.assign(seq_id=table.seq_id + 0.5), "seq_id must be whole numbers"),
        (lambda table: table.assign(duration=-table.duration), "a duration is below 0"),
        (
            lambda table: table.assign(duration=(table.index == table.index[0]) * 1.0),
            "take no time without stragglers",
        ),
    ],
)
def test_a_trace_that_cannot_be_played_is_refused(change: Any, error: str) -> None:
    with pytest.raises(ValueError, match=f"^job: .*{error}"):
        pipeline_of(change(job()), Path("job"))


@pytest.mark.parametrize("kind", ["gc", "layernorm-grads-all-reduce"])
def test_a_job_without_some_kind_of_end_is_played(kind: str) -> None:
    """It waited for operations that it has not, so it was told that they wait for each other."""
    table = job(slow=(1, 0))
    assert whatif(pipeline_of(table[table.optype != kind], Path("job"))).workers == (1,)


@pytest.mark.parametrize("name", ["dp_rank", "stage", "rank", "step", "seq_id", "start_ts", "duration", "mc"])
@pytest.mark.parametrize("value", ["x", None, [1], np.inf, pd.NA, pd.Timestamp(0)])
def test_a_column_that_is_not_of_numbers_is_named(name: str, value: Any) -> None:
    """Most were tracebacks."""
    table = job()
    table[name] = table[name].astype("Float64" if value is pd.NA else float if value is np.inf else object)
    table.at[0, name] = value
    for read in (pipeline_of, steps_of):
        with pytest.raises(ValueError, match=f"^job: {name} must be (numbers|finite)$"):
            read(table, Path("job"))


def test_parquet_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="an extra: traces")
    path = tmp_path / "job.parquet"
    job(slow=(1, 0)).to_parquet(path)
    assert whatif(read_pipeline(path)).workers == (1,)
    series = traced(path)
    assert len(series.series) == WIDTH
    dice = np.random.default_rng(0)
    means = [series.draw(64, dice, rank).mean() for rank in range(3)]
    assert means[0] == means[2] < means[1]
    job().drop(columns="seq_id").to_parquet(path)
    with pytest.raises(ValueError, match="it has no column seq_id"):
        read_pipeline(path)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_BYTES", 10_000)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(ValueError, match="it unpacks to more than 10,000 bytes"):
        traced(path)


def test_begins_and_ends_are_events(tmp_path: Path) -> None:
    """Only whole events were read, and the error told of a missing schedule."""
    lines: list[dict[str, Any]] = []
    for step in range(6):
        lines.append({"ph": "B", "name": "ProfilerStep#0", "pid": 0, "tid": 0, "ts": 1000 * step})
        lines.append({"ph": "B", "name": "forward", "pid": 0, "tid": 0, "ts": 1000 * step + 10})
        lines += [{"ph": "E", "pid": 0, "tid": 0, "ts": 1000 * step + more} for more in (50, 100 * (1 + step))]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": lines}))
    (steps,) = traced(path).series
    assert steps.tolist() == pytest.approx([1e-4 * (1 + step) for step in range(6)])


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_kineto_and_chrome_traces_are_step_times(tmp_path: Path, ending: str) -> None:
    marked = [
        {"ph": "X", "cat": cat, "name": f"ProfilerStep#{step}", "pid": pid, "ts": 1000 * step, "dur": 500 * (1 + pid)}
        for step in range(8)
        for pid in range(2)
        for cat in ("user_annotation", "gpu_user_annotation")
    ]
    body = json.dumps(
        {"traceEvents": [*marked, {"ph": "X", "name": "aten::mm", "pid": 0, "tid": 1, "ts": 5, "dur": 9}]}
    )
    path = tmp_path / f"trace{ending}"
    path.write_bytes(gzip.compress(body.encode()) if ending.endswith("gz") else body.encode())
    steps = step_times(str(path))
    dice = np.random.default_rng(0)
    drawn = [steps.draw(32, dice, rank).mean() for rank in range(2)]
    assert drawn == pytest.approx([2 / 3, 4 / 3])


def test_a_trace_that_torch_profiler_writes_is_step_times(tmp_path: Path) -> None:
    """Of a loop here whose every third step takes four times as long, and operations beside the steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    path, value = tmp_path / "trace.json", torch.ones(8, 8)
    steps_are_marked = schedule(wait=0, warmup=1, active=10)  # without one they are not
    with profile(activities=[ProfilerActivity.CPU], schedule=steps_are_marked) as profiler:
        for step in range(10):
            value = torch.mm(value, value) / 8
            time.sleep(0.08 if step % 3 == 0 else 0.02)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    (steps,) = traced(path).series
    assert steps.size == 9, "without the one that the end of the window closes"
    assert min(steps[2::3]) >= 0.08
    assert 0.02 <= min(steps) < 0.06


def test_a_file_that_is_no_trace_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(ValueError, match=r"trace\.json: .*No such file"):
        traced(path)
    path.write_text("{]")
    with pytest.raises(ValueError, match=r"trace\.json: "):
        traced(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no rank has 3 steps"):
        traced(path)


def test_utilisation_is_fitted_on_what_it_made() -> None:
    truth = UtilisationModel(a=5e4, b=12.0, e=0.1, k=0.003)
    cells = [(h, b) for h in (1.0, 100.0) for b in (50.0, 300.0, 4000.0)]
    model = fit({cell: truth.at(*cell) for cell in cells})
    assert model.at(20.0, 1000.0) == pytest.approx(truth.at(20.0, 1000.0), rel=1e-3)
    with pytest.raises(ValueError, match="3 cells are too few for 4 parameters"):
        fit(dict.fromkeys(cells[:3], 0.5))


def test_the_measured_grid_is_predicted_within_a_tenth() -> None:
    page, good = diloco()
    assert good, "\n".join(page)
    assert "with 4 parameters" in "\n".join(page)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(json.dumps({"traceEvents": []}).encode())[:-6],
        gzip.compress(b"x" * 4000)[:12] + b"\xff" * 40,
        gzip.compress(json.dumps({"traceEvents": [{"ph": "X", "dur": 1, "name": "data"}]}).encode()),
        gzip.compress(json.dumps({"traceEvents": {"ph": "X"}}).encode()),
        gzip.compress(
            json.dumps({"traceEvents": [{"ph": "X", "ts": n, "dur": 0, "name": "data"} for n in range(9)]}).encode()
        ),
        gzip.compress(b"[" * 100_000),
        gzip.compress(json.dumps({"traceEvents": [{"ph": "X", "ts": 1, "dur": 10**400, "name": "data"}]}).encode()),
        gzip.compress(
            json.dumps({"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "data", "pid": {}}]}).encode()
        ),
    ],
)
def test_a_trace_that_is_broken_is_one_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"trace\.json\.gz"):
        traced(tmp_path / "trace.json.gz")


def test_ranks_that_are_not_numbered_from_0_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="from 0 up"):
        pipeline_of(job().assign(dp_rank=lambda table: table.dp_rank + 1), tmp_path)
