"""The tables of floDl's ddp-bench: eight models, solo and on several GPUs; one run each, seed 42, in both."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.results.runfolder import Run
from benchmarks.seeds.parts import ours, shown, signed, table


class Published(NamedTuple):
    """A row of theirs."""

    value: float
    seconds: float
    syncs: int | None = None


P = Published
THEIRS: dict[str, dict[str, Published]] = {
    "logistic": {
        "solo": P(0.9243, 1.0), "nccl_sync": P(0.9197, 7.6, 56), "nccl_cadence": P(0.9191, 5.6, 19),
        "cpu_sync": P(0.9194, 5.6, 17), "cpu_cadence": P(0.9178, 5.3, 15), "cpu_async": P(0.9209, 4.4, 10),
    },
    "mlp": {
        "solo": P(0.9628, 2.0), "nccl_sync": P(0.9728, 6.6, 59), "nccl_cadence": P(0.9696, 5.6, 17),
        "cpu_sync": P(0.9703, 5.3, 41), "cpu_cadence": P(0.9692, 5.6, 19), "cpu_async": P(0.9709, 4.4, 10),
    },
    "lenet": {
        "solo": P(0.9870, 2.9), "nccl_sync": P(0.9894, 7.6, 66), "nccl_cadence": P(0.9891, 6.6, 23),
        "cpu_sync": P(0.9887, 7.3, 34), "cpu_cadence": P(0.9760, 5.3, 10), "cpu_async": P(0.9871, 5.3, 10),
    },
    "conv_ae": {
        "solo": P(0.0006, 1.7), "nccl_sync": P(0.0007, 7.5, 58), "nccl_cadence": P(0.0010, 6.6, 19),
        "cpu_sync": P(0.0008, 7.3, 19), "cpu_cadence": P(0.0010, 6.3, 23), "cpu_async": P(0.0009, 5.3, 10),
    },
    "char_rnn": {
        "solo": P(1.7457, 30.3), "nccl_sync": P(1.5604, 126.6, 465), "nccl_cadence": P(1.6492, 29.4, 51),
        "cpu_sync": P(1.5604, 150.4, 283), "cpu_cadence": P(1.6523, 32.4, 50), "cpu_async": P(1.6319, 37.4, 43),
    },
    "gpt_nano": {
        "solo": P(1.7543, 59.8), "nccl_sync": P(1.9445, 98.6, 817), "nccl_cadence": P(1.8625, 45.6, 52),
        "cpu_sync": P(1.9643, 141.4, 539), "cpu_cadence": P(1.8632, 49.6, 51), "cpu_async": P(1.8897, 48.6, 44),
    },
    "resnet_graph": {
        "solo": P(0.9146, 696.1), "nccl_sync": P(0.9160, 1137.2, 11048), "nccl_cadence": P(0.9178, 512.2, 492),
        "cpu_sync": P(0.9159, 1607.3, 15396), "cpu_cadence": P(0.9179, 503.0, 270), "cpu_async": P(0.9156, 497.9, 215),
    },
    "resnet": {"solo": P(0.9141, 685.2), "nccl_cadence": P(0.9208, 510.0, 433)},
}  # fmt: skip
"""Model -> mode -> what is published; the later report, on three GPUs, solo on the fastest."""
MODES = ("solo", "nccl_sync", "nccl_cadence", "nccl_async", "cpu_sync", "cpu_cadence", "cpu_async")


def section(runs: list[Run], out: Path | None) -> list[str]:
    """Return this part of the page."""
    parts = ["## floDl's ddp-bench: every model and mode, `experiment=ddp_bench`"]
    for model, theirs in THEIRS.items():
        of_model = {run.metrics.mode: run for run in runs if run.metrics.model == model}
        metric = next((run.metrics.final.eval_metric for run in of_model.values()), "the metric")
        parts += [f"### `{model}` ({metric})", _table(theirs, of_model)]
    trained = {(run.metrics.model, run.metrics.mode) for run in runs}
    lacking = [f"`{m}` in {mode}" for m in THEIRS for mode in MODES if (m, mode) not in trained]
    if lacking:
        parts.append(f"Not trained yet: {', '.join(lacking)}.")
    differs = (
        "Theirs: full data sets, published lengths (5, 50 or 200 epochs), three unequal GPUs (shares about .69, .16, .15), "
        "rates that differ between solo and the others; no `nccl_async` in that report. Ours: the `quick` recipes on small "
        "data, two equal ranks, one rate for all. Speed-up is solo's seconds by those of the mode: of the whole run, and in "
        "ours of training alone. One run each, so a difference below the spread of seeds means nothing; `bench validate` "
        "judges several seeds."
    )
    return [*parts, ours(runs), differs]


def _table(theirs: dict[str, Published], of_model: dict[str, Run]) -> str:
    solo, alone = theirs["solo"], of_model.get("solo")
    rows = []
    for mode in MODES:
        published, run = theirs.get(mode), of_model.get(mode)
        if published is None and run is None:
            continue
        left = ["-"] * 4
        if published is not None:
            change = None if mode == "solo" else published.value - solo.value
            gain = None if mode == "solo" else solo.seconds / published.seconds
            left = [f"{published.value:.4f}", signed(change), shown(gain), shown(published.syncs, "{:.0f}")]
        rows.append([mode, *left, *_of(run, alone)])
    headers = [
        "mode", "theirs", "to solo", "speed-up", "averages",
        "ours", "to solo", "speed-up", "averages", "ms each", "load",
    ]  # fmt: skip
    return table(headers, rows)


def _of(run: Run | None, alone: Run | None) -> list[str]:
    if run is None:
        return ["-"] * 6
    m = run.metrics
    change = gain = None
    if alone is not None and m.mode != "solo":
        if m.final.eval is not None and alone.metrics.final.eval is not None:
            change = m.final.eval - alone.metrics.final.eval
        gain = alone.metrics.time_s.train / m.time_s.train
    load = m.env.get("load_1min")
    count = None if m.mode == "solo" else m.sync.count
    return [
        shown(m.final.eval, "{:.4f}"), signed(change), shown(gain), shown(count, "{:.0f}"),
        shown(m.sync.ms_p50 if count else None, "{:.1f}"), shown(load if isinstance(load, int | float) else None, "{:.0f}"),
    ]  # fmt: skip
