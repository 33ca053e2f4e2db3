"""The curves of ranks over time, as plain data for JSON. Pure."""

from __future__ import annotations

import math
from typing import Any

from bench.results.live.history import RunHistory
from bench.results.live.series import TimeBin

Json = dict[str, Any]
DIGITS = 4


def curves(history: RunHistory) -> Json:
    """Return the curves of each rank, one value per bin of `width_s`, and those of all ranks together as rank `all`."""
    series, per_epoch = history.series, history.run.epoch_samples
    columns = {
        number: bins + [TimeBin()] * (series.length - len(bins)) for number, bins in sorted(series.ranks.items())
    }
    together = [_together(bins) for bins in zip(*columns.values(), strict=True)]
    sums = [each.samples for each in together]
    seen, epochs = 0.0, []
    for samples in sums:
        epochs.append(short(ratio(seen + samples / 2, per_epoch)))
        seen += samples
    lines = {str(number): _lines(column, sums) for number, column in columns.items()}
    lines["all"] = {name: _lines(together, sums)[name] for name in ("loss", "samples_per_s")}
    if not history.run.counted:
        lines = {name: each | {"samples_per_s": [None] * series.length} for name, each in lines.items()}
    return {"width_s": series.width, "epoch": epochs, "ranks": lines}


def _together(bins: tuple[TimeBin, ...]) -> TimeBin:
    total = TimeBin()
    for each in bins:
        total = total.plus(each)
    return total._replace(seconds=max(each.seconds for each in bins))  # ranks run at the same time


def _lines(bins: list[TimeBin], sums: list[float]) -> dict[str, list[float | None]]:
    return {
        "loss": [short(ratio(b.loss_sum, b.samples)) for b in bins],
        "samples_per_s": [short(ratio(b.samples, b.seconds)) for b in bins],
        # A bin without reports has no share; a lost rank does not have a share of 0.
        "share": [short(ratio(b.samples, total)) if b.seconds else None for b, total in zip(bins, sums, strict=True)],
        "step_ms": [short(ratio(b.busy_s * 1e3, b.steps)) for b in bins],
        "cpu": [short(ratio(b.cpu_s, b.used_s)) for b in bins],
        "gpu": [short(ratio(b.gpu_s, b.gpu_used_s)) for b in bins],
        "rss_bytes": [round(b.rss) or None for b in bins],
        "device_bytes": [round(b.device) or None for b in bins],
    }


def ratio(total: float, count: float) -> float | None:
    """Return `total / count`; None if the count is 0 or the total is not finite."""
    return total / count if count > 0 and math.isfinite(total) else None


def short(value: float | None) -> float | None:
    """Round to `DIGITS` significant digits, enough for the eye; None if not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
