"""The verb `predict`: predicts the speed of other configurations from the records of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.garbage import no_collections
from bench.base.number_format import metric, rate
from bench.base.tables import markdown
from bench.base.usage import path_of, usage, writable
from bench.base.writing import write_json
from bench.command.parser import Parser
from bench.command.verbs.explain_command import CHROME, ended, located, records_in
from bench.config.link_checks import links_for
from bench.predict.calibration import Calibration, calibrated
from bench.predict.cells import Prediction
from bench.predict.cells import predict as predict_cell
from bench.predict.evidence import CalibratedCell, CalibratedRun, apart, distinct, grouped, shows_error
from bench.predict.fitness import check_end
from bench.predict.folder import write_run
from bench.predict.grid import anchored, calibrated_for, faster, grid, settings_for, what_if
from bench.predict.intervals import ENOUGH, LEVEL
from bench.predict.predicted_cell import PredictedCell
from bench.predict.traces import TracedSteps, traced
from bench.results.analysis.stream import sort
from bench.results.analysis.training import train_seconds
from bench.results.runfolder import of_run, unended
from bench.results.schema import MOST_RANKS
from ddp.core.network.links import ALGORITHMS, Links
from ddp.core.policies import POLICIES
from ddp.settings import emulated, known
from ddp.sim.distributions import StepDistribution, distribution

AS_CALIBRATED = "same"
TRACES = (".parquet", *CHROME)
DOUBT = "(?) Do not rely on this interval: too far from what was calibrated."
MOST_FOLDERS = 512
"""Most ranks of a cell that gets a run folder. Larger cells get only a row, as the folder would take minutes to
write."""


def add(parser: Parser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "paths", type=path_of, nargs="+", metavar="RUN", help="run folders to take step times and costs from"
    )
    parser.add_argument("--ranks", metavar="N,M", help="numbers of ranks (default: that of the run)")
    links = f"links, as in cluster.links, or an algorithm; {AS_CALIBRATED}: of the run (default: {AS_CALIBRATED})"
    parser.add_argument("--links", default=AS_CALIBRATED, metavar="A,B", help=links)
    parser.add_argument("--speeds", metavar="X,Y", help="emulated speeds of ranks, again from the first one")
    steps = "draw step times with the run's mean: lognormal:SD, exponential:PART, pareto:EXPONENT, onoff:FACTOR:PART, or as "
    steps += "they scatter in a trace"
    parser.add_argument("--steps", metavar="NAME:X", help=steps)
    every = "of the same backend: all, or some (default: that of the run)"
    parser.add_argument("--policies", metavar="A,B", help=every)
    cores = "all ranks share so many cores of one host (default: those that the run's ranks shared, or one each)"
    parser.add_argument("--cores", type=int, metavar="N", help=cores)
    parser.add_argument("--anchor", type=int, metavar="N", help="steps of the slowest rank in every window")
    parser.add_argument("--heal", type=int, metavar="RANK", help="make this rank as fast as the fastest")
    parser.add_argument("--bandwidth", type=float, default=1.0, metavar="X", help="factor on the bandwidth of links")
    alone = "for each cell also: slow ranks healed, twice the bandwidth, other policies and windows"
    parser.add_argument("--what-if", action="store_true", help=alone)
    out = "tree of run folders to write, as report and dashboard read them (default: predicted; none: write none)"
    parser.add_argument("--output", type=path_of, default=Path("predicted"), metavar="TREE", help=out)
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write the result to this file, as JSON")


def predict(options: argparse.Namespace) -> Exit:
    """Predict the cells and print the table. Raise UsageError."""
    with usage():
        given = [calibrated_run(path) for path in options.paths]
        _check_together(options.paths, given)
        runs = distinct(given)
        sources = grouped(runs)
        cells = list(_cells(options, sources))
    used = [each for each in sources if any(each is source or shows_error(each, source) for _, _, source in cells)]
    for path, run in zip(options.paths, given, strict=True):
        if run not in runs:
            print(f"left out {path}: it is the run {run.calibration.spec.run_id} again, which was given before it")
        elif not any(run in source.runs for source in used):
            print(f"left out {path}: no cell is predicted from it; the runs of a policy nearest in ranks count")
    with no_collections():
        for source in used:
            print("\n".join(_about(source, options.cores)))
        predictions = []
        for title, cell, source in cells:
            others = [each for each in used if each is not source]
            prediction, played = predict_cell(cell, source, title, others)
            predictions.append(prediction)
            if options.output != Path("none") and cell.ranks <= MOST_FOLDERS:
                with usage():
                    write_run(cell, source.calibration, played, options.output)
            print(f"{_title(prediction)}: {rate(prediction.samples_per_s)} samples/s", file=sys.stderr, flush=True)
    print("\n".join(table(predictions)))
    if options.json is not None:
        with usage():
            calibrations = [
                {"run": run.calibration.spec.run_id, "samples_per_s": run.rate, "error": run.error(options.cores)}
                | {"steps": [asdict(shape) for shape in run.calibration.shapes]}
                for source in used
                for run in source.runs
            ]
            body = {"level": LEVEL, "calibrated": calibrations, "predictions": [asdict(each) for each in predictions]}
            write_json(options.json, body)
    return Exit.OK


def _check_together(paths: Sequence[Path], runs: Sequence[CalibratedRun]) -> None:
    """Raise ValueError if the runs are of different configurations, which one table would mix."""
    for (first, earlier), (path, run) in combinations(zip(paths, runs, strict=True), 2):
        if (difference := apart(run, earlier)) is not None:
            name, value, before = difference
            alike = "give runs that differ in seed, policy, ranks, links and speeds alone"
            raise ValueError(f"{path}: {name}={value}, but {first} has {name}={before}; {alike}")


def calibrated_run(folder: Path) -> CalibratedRun:
    """Return the calibrated costs of a run and its samples per second. Raise ValueError, also if the run cannot be
    played by these costs."""
    folder = located(folder)
    spec, header, records = records_in(folder)
    launched = header.launched
    if (end := ended(records)) is None:
        raise ValueError(f"{folder}: {unended(folder)}")
    with of_run(folder):
        try:
            check_end(end)
            stream = sort(records, launched)
            cores = header.env.get("cores")
            costs = calibrated(stream, spec, launched, cores if type(cores) is int and cores > 0 else None)
            run = CalibratedRun(costs, stream.figures.samples / train_seconds(stream), launched)
            run.scale(None)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
    return run


def _cells(
    options: argparse.Namespace, sources: Sequence[CalibratedCell]
) -> Iterator[tuple[str, PredictedCell, CalibratedCell]]:
    """Yield (name, cell, source) for each cell to predict; the name is set if the cell is a variant of the one before.
    Raise ValueError."""
    first = sources[0].calibration
    ranks = [first.ranks] if options.ranks is None else list(dict.fromkeys(map(_count, options.ranks.split(","))))
    links = _distinct(options.links.split(","), min(ranks), options.bandwidth, first)
    policies = _policies(options.policies)
    words = [] if options.speeds is None else options.speeds.split(",")
    speeds = emulated("--speeds", [_number(word) for word in words]) if words else ()
    for size in sorted(ranks):
        if size < len(speeds):
            print(f"×{size} takes only the first {size} of {len(speeds)} --speeds")
    steps = None if options.steps is None else step_times(options.steps)
    if options.heal is not None and not 0 <= options.heal < min(ranks):
        raise ValueError(f"--heal {options.heal}: ranks are 0 to {min(ranks) - 1}")
    healed = () if options.heal is None else (options.heal,)
    if options.cores is not None and not 1 <= options.cores <= MOST_RANKS:
        raise ValueError(f"--cores {options.cores}: give a number from 1 to {MOST_RANKS}")
    changes = {"speeds": speeds, "steps": steps, "healed": healed}
    changes |= {"cores": options.cores} if options.cores is not None else {}
    for cell, source in grid(sources, ranks, links, policies, **changes):
        cell = cell if options.anchor is None else anchored(cell, options.anchor)
        yield "", cell, source
        for name, other in what_if(cell, source.calibration) if options.what_if else ():
            runs = source
            if other.policy != cell.policy:
                runs = calibrated_for(other.policy, cell.ranks, sources)
                other = replace(other, settings=settings_for(other.policy, cell.ranks, runs))
            yield name, other, runs


def step_times(text: str) -> StepDistribution | TracedSteps:
    """Return the source of step times that `text` names: a distribution or the trace in a file. Raise ValueError."""
    return traced(Path(text)) if text.endswith(TRACES) else distribution(text)


def _count(word: str) -> int:
    if not word.strip().isdecimal() or not 2 <= int(word) <= MOST_RANKS:
        raise ValueError(f"--ranks {word}: give numbers from 2 to {MOST_RANKS}, such as 2,8,64")
    return int(word)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"--speeds {word}: give numbers from 0.01 to 1, such as 1.0,0.5") from None


def _links(word: str, ranks: int, bandwidth: float, calibration: Calibration) -> Links | None:
    if not word.split():
        raise ValueError(f"--links: an entry is empty; write {AS_CALIBRATED} for the links of the run")
    if word in ALGORITHMS and calibration.links is None:
        raise ValueError(f"--links {word}: the run has no links; give them before it, such as 'wan_1g_30ms {word}'")
    same = word == AS_CALIBRATED or word in ALGORITHMS
    links = calibration.links if same else links_for(word.split(), ranks)
    if same and links is not None:
        links_for(links.words, ranks)
    links = replace(links, algorithm=word) if links is not None and word in ALGORITHMS else links
    if bandwidth == 1.0:
        return links
    if links is None or not bandwidth > 0:
        raise ValueError(f"--bandwidth {bandwidth:g}: give a number above 0, and --links that it is of")
    return faster(links, bandwidth)


def _distinct(words: Sequence[str], ranks: int, bandwidth: float, calibration: Calibration) -> list[Links | None]:
    """Return the links that `words` name, and say of which that they were named before. Raise ValueError."""
    kept: dict[str, tuple[str, Links | None]] = {}
    for word in words:
        links = _links(word, ranks, bandwidth, calibration)
        text = " ".join(links.words) if links is not None else ""
        if text in kept:
            print(f"left out --links {word}: the same as {kept[text][0]}")
        kept.setdefault(text, (word, links))
    return [links for _, links in kept.values()]


def _policies(words: str | None) -> tuple[str, ...]:
    if words == "all":
        return tuple(POLICIES)
    return () if words is None else tuple(dict.fromkeys(known("policy", word, POLICIES) for word in words.split(",")))


def _about(source: CalibratedCell, cores: int | None) -> Iterator[str]:
    """Yield lines on the calibration, and on how well it predicts the run that it comes from."""
    for run in source.runs:
        spec = run.calibration.spec
        itself = f"{rate(run.rate)} samples/s; predicted of itself {100 * run.error(cores):+.1f} %"
        yield f"calibrated on {spec.model} {spec.mode} {spec.run_id}, {itself}"
        for rank, shape in enumerate(run.calibration.shapes):
            spread = f"spread {shape.spread:.2f}, p99/p50 {shape.tail:.1f}, autocorrelation {shape.autocorrelation:.2f}"
            speed = f" before its emulated speed {spec.speeds[rank]:g}" if spec.speeds else ""
            yield f"  rank {rank}: {1e3 * shape.mean_s:.3g} ms a step{speed}, {spread}"
    if len(source.runs) < ENOUGH:
        few = "no interval" if len(source.runs) == 1 else "a wide interval"
        count = f"{len(source.runs)} run{'s' if len(source.runs) > 1 else ''}"
        yield f"  {count} of this cell: {few}; train {ENOUGH} (seed=0,1,2) and give all"


def _title(prediction: Prediction) -> str:
    return prediction.title or f"{prediction.mode} ×{prediction.ranks} over {prediction.links}"


def span(prediction: Prediction) -> str:
    """Return the interval of a prediction as text."""
    if prediction.low is None or prediction.high is None:
        return "unknown: one run"
    return f"{rate(prediction.low)} to {rate(prediction.high)}{'' if prediction.trusted else ' (?)'}"


def table(predictions: Sequence[Prediction]) -> list[str]:
    """Return the table as Markdown; below it, notes on cells outside the calibrated range."""
    head = ("cell", "samples/s", f"{100 * LEVEL:.0f} % interval", "efficiency", "waiting", "communicating", "MB")
    notes = list(dict.fromkeys(line for each in predictions for line in each.beyond))
    rows, base = list[list[str]](), None
    for each in predictions:
        base = each if not each.title or base is None else base
        rows.append(_row(each, base, notes))
    lines = ["", *markdown((*head, "limited by", "beyond"), rows)]
    lines += ([""] if notes else []) + [f"{place}. {note}" for place, note in enumerate(notes, 1)]
    return lines + (["", DOUBT] if any(each.low is not None and not each.trusted for each in predictions) else [])


def _row(each: Prediction, base: Prediction, notes: Sequence[str]) -> list[str]:
    title = _title(each) if each is base else f"{each.title}: ×{each.samples_per_s / base.samples_per_s:.2f}"
    shares = (each.efficiency, each.waiting, each.communicating)
    return [
        title,
        f"{rate(each.samples_per_s)}",
        span(each),
        *(f"{100 * share:.1f} %" if share is not None else metric(None) for share in shares),
        f"{each.bytes / 1e6:,.1f}",
        each.limit,
        ", ".join(str(notes.index(line) + 1) for line in each.beyond),
    ]
