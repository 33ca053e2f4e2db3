"""Compares predictions with published measurements of others, as tables in `reports/prediction`.

    python -m benchmarks.published_traces diloco               reports/prediction/diloco.md
    python -m benchmarks.published_traces stragglers FOLDER    reports/prediction/stragglers.md

`diloco`: utilisation over windows and bandwidths (diloco-measured, 2026-08: 30.8 million parameters on four L40S, links
shaped by `tc`, medians of three). `stragglers`: FOLDER holds trace-, result-, mw- and ms-files of ByteDance's analysis.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.predict.pipeline_trace import whatif
from bench.predict.traces import read_pipeline
from bench.predict.utilisation import Cell, UtilisationModel, fit
from benchmarks.frame import options, table, write_report

BANDWIDTHS = (50, 200, 1000, 5000)
PERCENT = {
    1: (0.07, 0.32, 1.74, 7.76),
    8: (0.55, 2.48, 12.35, 40.24),
    32: (2.41, 10.01, 36.01, 68.10),
    128: (11.55, 36.09, 71.52, 87.00),
}
"""Steps between averages -> measured utilisation at each bandwidth, Mbit/s."""
FITTED = (1, 128)
LIMIT = 0.1
SAME = 0.01
"""Of the authors' figures."""


def grid() -> dict[Cell, float]:
    """Return what was measured, from 0 to 1."""
    return {(h, b): value / 100 for h, row in PERCENT.items() for b, value in zip(BANDWIDTHS, row, strict=True)}


def error(model: UtilisationModel, cell: Cell) -> float:
    """Return how far a prediction is off, relative."""
    return model.at(*cell) / grid()[cell] - 1


def fitted(without: int | None = None) -> UtilisationModel:
    """Return the model of the cells that are fitted on; `without` one bandwidth."""
    return fit({cell: value for cell, value in grid().items() if cell[0] in FITTED and cell[1] != without})


def diloco() -> tuple[list[str], bool]:
    """Return the parts of the page, and whether all held-out cells are within the limit."""
    model = fitted()
    held = [cell for cell in grid() if cell[0] not in FITTED]
    about = (
        "Measured by others (diloco-measured, 4 x L40S). Fitted on windows of 1 and 128 steps, predicted at 8 and 32, by "
        f"one formula with {model.size} parameters, H steps between averages and B Mbit/s: H / (H (1 + e) + (a / B) "
        "(1 + b / B) (1 - k H)) (`bench/predict/utilisation.py`). It was chosen with all these measurements known. "
        "`python -m benchmarks.published_traces diloco` made this page.\n\n"
        f"a = {model.a:,.0f}, b = {model.b:.3g} Mbit/s, e = {model.e:.3g}, k = {model.k:.3g}"
    )
    rows = []
    apart = {bandwidth: fitted(without=bandwidth) for bandwidth in BANDWIDTHS}
    for (h, b), value in grid().items():
        mine, other = 100 * model.at(h, b), 100 * error(apart[int(b)], (h, b))
        off = f"{mine / value - 100:+.1f} % ({'fitted' if h in FITTED else 'held out'})"
        rows.append([f"{h}", f"{b:,}", f"{100 * value:.2f} %", f"{mine:.2f} %", off, f"{other:+.1f} %"])
    worst = max(abs(error(model, cell)) for cell in held)
    beyond = max(abs(error(apart[int(cell[1])], cell)) for cell in grid())
    held_out = f"Held out: at most {100 * worst:.1f} % off. A bandwidth left out: at most {100 * beyond:.1f} % off."
    heads = ["steps", "Mbit/s", "measured", "predicted", "error", "that bandwidth left out"]
    return [
        "# Utilisation of DiLoCo, predicted",
        about,
        table(rows, heads),
        held_out,
    ], worst <= LIMIT and beyond <= LIMIT


def _compared(folder: Path, name: str) -> Iterator[tuple[str, float, float]]:
    """Yield figure, ours and the authors'."""
    found = whatif(read_pipeline(folder / f"trace-{name}.parquet"))
    result, workers, stage = (
        json.loads((folder / f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms")
    )
    yield "step, measured, s", found.measured_s, workers["tori"]
    yield "step without stragglers, s", found.ideal_s, workers["tideal"]
    yield "slowdown S", found.slowdown, result["blocking_slowdown"]
    yield "part of the worst workers M_W", found.workers_part, workers["Mw"]
    yield "part of the last stage M_S", found.last_stage_part, stage["Ms"]
    groups = (("rank", found.by_rank, "dp_rank"), ("stage", found.by_stage, "stage"), ("kind", found.by_kind, "optype"))
    for about, mine, theirs in groups:
        given = result[f"blocking_decompose_by_{theirs}"]
        key, ours = max(mine.items(), key=lambda item: abs(item[1] / given[str(item[0])] - 1))
        yield f"slowdown by {about}, farthest off of {len(given)}", ours, given[str(key)]


def stragglers(folder: Path) -> tuple[list[str], bool]:
    """Return the parts of the page, and whether all figures are the authors' within `SAME`."""
    about = (
        "Three training jobs of 8, 64 and 128 workers (ByteDance-Seed/StragglerAnalysis, OSDI 2025), beside their authors' "
        "results. `python -m benchmarks.published_traces stragglers FOLDER` made this page; `python -m bench explain "
        "trace-SE.parquet` shows one of them."
    )
    rows, good = [], True
    for name in ("ST", "AR", "SE"):
        for figure, ours, theirs in _compared(folder, name):
            off = ours / theirs - 1
            good &= abs(off) <= SAME
            rows.append([name, figure, f"{ours:.5f}", f"{theirs:.5f}", f"{100 * off:+.5f} %"])
    heads = ["trace", "figure", "here", "authors", "off"]
    return ["# What-if figures of three published traces", about, table(rows, heads)], good


def main() -> int:
    """Write a page; return 1 where a figure is off by more than it may be."""
    parser = options(__doc__)
    parser.add_argument("what", choices=("diloco", "stragglers"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("traces"))
    asked = parser.parse_args()
    parts, good = diloco() if asked.what == "diloco" else stragglers(asked.folder)
    write_report(f"prediction/{asked.what}.md", *parts)
    print(*parts[2:], sep="\n\n")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
