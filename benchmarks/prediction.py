"""Compares predictions with measurements: calibrated on two ranks without links, applied to up to eight emulated slow
ranks over links.

    python -m benchmarks.prediction                # the small grid, minutes; what is trained is not trained again
    python -m benchmarks.prediction --full         # three models, six modes, four links: hours
    python -m benchmarks.prediction --full --jobs 3 --patience 0   # beside each run, two that mostly wait for their links
    python -m benchmarks.prediction --own          # steps as long as they take on this machine
    python -m benchmarks.prediction --full --write # and the table into reports/prediction/truth.md
    python -m benchmarks.prediction --own --write  # into reports/prediction/own-steps.md

The small grid with given step times has no page: its table is printed only.

Models, cells and thresholds are in this file and were committed before the measurements. A real cell is the mean of
its runs; it counts as within the interval if this mean is.

Steps have a given time (`cluster.step_s`) unless `--own` is given: on a machine with other users computing itself takes up
to twice as long from one run to the next, which nothing could predict.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import product
from pathlib import Path
from statistics import fmean, median

import psutil

from bench.base.exitcodes import Exit
from bench.base.number_format import rate
from bench.command.cli import dispatch
from bench.command.verbs.predict_command import calibrated_run, span
from bench.predict.cells import Prediction, predict
from bench.predict.evidence import CalibratedCell, own_cell
from bench.predict.predicted_cell import PredictedCell
from bench.results.runfolder import Run, find_runs, read_records
from benchmarks import frame
from ddp.core.messages.events import Failed
from ddp.core.network.links import parse
from ddp.process.cores import cores

MEDIAN, WORST, COVERED = 0.05, 0.15, 0.90
"""Most that samples per second may be off, in the median and in the worst cell; least part of cells within intervals."""
SPEEDS = (0.2, 0.1)
"""Of ranks, again from the first: they sleep most of the time, so that two cores suffice."""
NONE = "none"
ATTEMPTS = 5
"""At a run whose links are refused, because the transport is slower for a moment."""
IDLE = 0.1
"""Of the processor: what others may use where a run begins."""


@dataclass(frozen=True)
class TruthGrid:
    """What is trained and predicted."""

    models: tuple[str, ...]
    modes: tuple[str, ...]
    links: tuple[str, ...]
    ranks: tuple[int, ...]
    seeds: tuple[int, ...] = (0, 1, 2)


SMALL = TruthGrid(("mlp",), ("nccl_sync", "nccl_cadence", "cpu_async"), (NONE,), (3, 4))
FULL = TruthGrid(
    ("mlp", "lenet", "char_rnn"),
    ("nccl_sync", "nccl_cadence", "nccl_async", "cpu_sync", "cpu_cadence", "cpu_async"),
    (NONE, "ethernet_10g", "home_100m", "wan_1g_30ms"),
    (3, 4, 8),
)
SLOW_LINKS = ("home_100m", "wan_1g_30ms")
STEP_S = {"mlp": 0.002, "lenet": 0.006, "char_rnn": 0.05}
"""Seconds of a step at speed 1, by model: twice what it computes on this machine, so that eight ranks of a fifth and a
tenth of it compute on 0.6 cores."""
SAMPLES = {"char_rnn": 1536}
"""Training samples where the recipe's would take too long."""
EPOCHS, OWN_EPOCHS = 1, 5
"""Epochs of a run with given step times, and without: there runs of one epoch differed by up to 40 %."""
SPAWNED = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class TruthRow:
    """A cell as predicted and as it was."""

    model: str
    prediction: Prediction
    link: str
    rates: tuple[float, ...]
    """Samples per second of the real runs."""
    disturbed: int
    """Runs of them during which other programs used the processor."""
    loads: tuple[float, ...]
    """Of the machine in the minute before each run."""

    @property
    def error(self) -> float:
        """How far the prediction is off, relative."""
        return self.prediction.samples_per_s / fmean(self.rates) - 1

    @property
    def covered(self) -> bool:
        """Whether the truth lies within the interval."""
        low, high = self.prediction.low, self.prediction.high
        return low is not None and high is not None and low <= fmean(self.rates) <= high


def trained(
    tree: Path,
    model: str,
    mode: str,
    ranks: int,
    link: str,
    seeds: tuple[int, ...],
    patience_s: float = 0.0,
    own: bool = False,
) -> list[Run]:
    """Return the real runs of a cell, trained where they are not there, each once the machine is idle or `patience_s` are
    over. `own`: with step times as they come. Raises RuntimeError if one fails, KeyboardInterrupt if one is interrupted."""
    speeds = [SPEEDS[rank % len(SPEEDS)] for rank in range(ranks)]
    place = tree / f"{mode}-{ranks}-{link}"
    words = [f"model={model}", f"mode={mode}", f"world_size={ranks}", f"cluster.speeds={speeds}", f"output={place}"]
    words += ["report=false", "validate=false", "audit=false", "checkpoint.every=0"]
    words += [f"train.epochs={OWN_EPOCHS}"] if own else [f"train.epochs={EPOCHS}", f"cluster.step_s={STEP_S[model]}"]
    words += [f"data.samples={SAMPLES[model]}"] if model in SAMPLES else []
    words += [] if link == NONE else [f"cluster.links={link}"]
    there = {run.metrics.seed for run in _finished(place, model)}
    for seed in (each for each in seeds if each not in there):
        for _ in range(ATTEMPTS):
            wait_idle(patience_s)
            with redirect_stdout(StringIO()):
                code = dispatch(["--quiet", *words, f"seed={seed}"])
            if code != Exit.FAILED or not refused(place, model, seed):
                break
        if code == Exit.KILLED:
            raise KeyboardInterrupt
        if code:
            raise RuntimeError(f"a run ended with {code}: bench {' '.join(words)} seed={seed}")
    return [run for run in _finished(place, model) if run.metrics.seed in seeds]


def refused(place: Path, model: str, seed: int) -> bool:
    """Return whether the run of a seed failed because its links were faster than the transport was."""
    runs = [run for run in _runs(place, model) if run.metrics.seed == seed]
    records = [record for run in runs for record in read_records(run.path)]
    return any(isinstance(record, Failed) and record.of_all for record in records)


def wait_idle(patience_s: float) -> None:
    """Wait until all programs together use less than `IDLE` of the processor for a second, `patience_s` at most."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until and psutil.cpu_percent(1.0) > 100 * IDLE:
        pass


def train(grid: TruthGrid, tree: Path, patience_s: float, own: bool, jobs: int) -> None:
    """Train what is not there, seed by seed: what was calibrated on and what is predicted at the same times of the day.

    One run at a time uses the processor; beside it, in other processes, are runs that mostly wait for links. A process
    imports once what all its runs need. Raises RuntimeError at once if a run fails.
    """
    cells = [(2, NONE), *((ranks, link) for link in grid.links for ranks in grid.ranks)]
    with ProcessPoolExecutor(1, SPAWNED) as busy, ProcessPoolExecutor(max(jobs - 1, 1), SPAWNED) as beside:
        runs = [
            (beside if jobs > 1 and waits(mode, link) else busy).submit(
                trained, tree, model, mode, ranks, link, (seed,), patience_s, own
            )
            for seed, mode, (ranks, link), model in product(grid.seeds, grid.modes, cells, grid.models)
        ]
        try:
            for run in as_completed(runs):
                run.result()
        except BaseException:
            frame.end_processes()  # the pools would do the rest before they end
            raise


def waits(mode: str, link: str) -> bool:
    """Return whether ranks of such a run wait for links most of the time."""
    return mode.endswith("_sync") and link in SLOW_LINKS


def _finished(place: Path, model: str) -> list[Run]:
    return [run for run in _runs(place, model) if run.metrics.status == "ok"]


def _runs(place: Path, model: str) -> list[Run]:
    runs = find_runs(place)[0] if place.is_dir() else []
    return [run for run in runs if run.metrics.model == model]


def rows(grid: TruthGrid, tree: Path, alone: bool) -> list[TruthRow]:
    """Return every cell of a grid, as predicted and as it was."""
    found = []
    with ProcessPoolExecutor(cores(), SPAWNED) as pool:
        for some in pool.map(partial(_rows, grid, tree, alone), *zip(*product(grid.models, grid.modes), strict=True)):
            print("\n".join(map(line, some)), flush=True)
            found += some
    return found


def _rows(grid: TruthGrid, tree: Path, alone: bool, model: str, mode: str) -> list[TruthRow]:
    """Return the cells of a model and mode, all predicted from its runs of two ranks."""
    found = []
    runs = trained(tree, model, mode, 2, NONE, grid.seeds, own=alone)
    source = CalibratedCell(tuple(calibrated_run(run.path) for run in runs))
    own = own_cell(source.calibration)
    for link, ranks in product(grid.links, grid.ranks):
        links = None if link == NONE else parse(link)
        cell: PredictedCell = replace(own, ranks=ranks, links=links, cores=cores())
        prediction, _ = predict(cell, source, "")
        runs = trained(tree, model, mode, ranks, link, grid.seeds, own=alone)
        rates = tuple(run.metrics.throughput.samples_per_s or 0.0 for run in runs)
        disturbed = sum(any("other programs" in note for note in run.metrics.warnings) for run in runs)
        loads = tuple(float(str(run.metrics.env.get("load_1min", 0.0))) for run in runs)
        found.append(TruthRow(model, prediction, link, rates, disturbed, loads))
    return found


def line(row: TruthRow) -> str:
    """Return a row of the table."""
    each = row.prediction
    truth = f"{rate(fmean(row.rates))} ({rate(min(row.rates))} to {rate(max(row.rates))})"
    interval = span(each).removesuffix(" (?)")
    cells = (row.model, f"{each.mode} ×{each.ranks}", row.link, rate(each.samples_per_s), interval, truth)
    return f"| {' | '.join(cells)} | {100 * row.error:+.1f} % | {'yes' if row.covered else 'no'} |"


def summary(found: list[TruthRow]) -> tuple[str, bool]:
    """Return what the table comes to, and whether all thresholds are met."""
    errors = [abs(row.error) for row in found]
    covered = fmean(row.covered for row in found)
    text = (
        f"{len(found)} cells: median error {100 * median(errors):.1f} % (at most {100 * MEDIAN:.0f}), worst "
        f"{100 * max(errors):.1f} % (at most {100 * WORST:.0f}), {100 * covered:.0f} % within their interval "
        f"(at least {100 * COVERED:.0f}); other programs used the processor during "
        f"{sum(row.disturbed for row in found)} of {sum(len(row.rates) for row in found)} runs, which began at a load of "
        f"{min(min(row.loads) for row in found):.1f} to {max(max(row.loads) for row in found):.1f}"
    )
    return text, median(errors) <= MEDIAN and max(errors) <= WORST and covered >= COVERED


HEAD = (
    "| model | cell | link | predicted, samples/s | 90 % interval | real, mean (range) | error | within |\n"
    f"{'|---' * 8}|"
)


def main() -> int:
    """Train, predict and print; 1 if a threshold is missed."""
    parser = frame.options(__doc__, "write the table into reports/prediction, if --full or --own is given, too")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--own", action="store_true", help="steps as long as they take, in runs/prediction-own")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, all but one of them waiting for links")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="real runs a cell (default: 3)")
    parser.add_argument("--runs", type=Path)
    waits = "wait so many seconds before each run for an idle machine (default: 60)"
    parser.add_argument("--patience", type=float, default=60.0, metavar="S", help=waits)
    options = parser.parse_args()
    grid = replace(FULL if options.full else SMALL, seeds=tuple(range(options.repeat)))
    tree = options.runs or Path("runs/prediction-own" if options.own else "runs/prediction")
    train(grid, tree, options.patience, options.own, options.jobs)
    print(HEAD, flush=True)
    found = rows(grid, tree, options.own)
    text, met = summary(found)
    print(f"\n{text}")
    if options.write:
        write(grid, options.full, options.own, found, text)
    return 0 if met else 1


def write(grid: TruthGrid, full: bool, own: bool, found: list[TruthRow], text: str) -> None:
    """Write the page of a grid; of the small grid with given step times nothing, as its page is that of the full grid."""
    if not full and not own:
        print("\nNothing is written: the page with steps of a given time has the full grid (--full).")
        return
    steps = ", ".join(f"{model} {1e3 * STEP_S[model]:g} ms" for model in grid.models)
    steps = "as long as they take" if own else f"of a given time at speed 1 ({steps})"
    runs, modes = len(grid.seeds), ", ".join(grid.modes)
    about = (
        f"The {'full' if full else 'small'} grid: {', '.join(grid.models)} in {modes} over {', '.join(grid.links)} on "
        f"{', '.join(map(str, grid.ranks))} ranks. "
        f"Calibrated on {runs} runs of two ranks without links, {runs} real runs a cell, speeds {SPEEDS} in "
        f"turn, {cores()} cores for all ranks, steps {steps}. `predict` marks all these intervals (?): links, cores or "
        "numbers of ranks are not those of the calibration."
    )
    title = f"# Predictions against truth, steps {'as long as they take' if own else 'of a given time'}"
    table = "\n".join([HEAD, *map(line, found)])
    frame.write_report(f"prediction/{'own-steps' if own else 'truth'}.md", title, about, text, table)


if __name__ == "__main__":
    frame.run_command(main)
