"""The verb `explain`: where the time of a run went, by rank and cause, and how fast the run would be without each
cause."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from bench.base.exitcodes import Exit
from bench.base.number_format import rate
from bench.base.tables import markdown
from bench.base.usage import UsageError, path_of, usage, writable
from bench.base.writing import write_json
from bench.command.parser import Parser
from bench.config.spec import RunSpec
from bench.predict.pipeline_trace import Whatif, whatif
from bench.predict.traces import read_pipeline
from bench.results.analysis.explained import NAMES, ExplainedRun, explained
from bench.results.analysis.stream import sort
from bench.results.recompute import header_of
from bench.results.runfolder import EVENTS, group_of, of_run, unended
from bench.results.schema import MOST_RANKS
from bench.timeline import rewrite
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.core.network.links import parse
from ddp.process.codec import Record

CHROME = (".json", ".json.gz")
"""Endings of traces of Chrome and Kineto."""
MOST_SHOWN = 5
"""Most rows of a kind in the table of a trace."""
SHOWN = 0.001
"""Causes with a smaller share of the time are summed up in one row of the table."""


def add(parser: Parser) -> None:
    """Declare the options."""
    about = "run folder, or a Parquet trace of a pipelined job (.parquet)"
    parser.add_argument("path", type=path_of, metavar="RUN", help=about)
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write the result to this file, as JSON")


def explain(options: argparse.Namespace) -> Exit:
    """Print the table of a run or a trace, and write it as JSON if `--json` is given. Raise UsageError."""
    file: Path | None = options.json
    with usage():
        run: ExplainedRun | Whatif
        if options.path.suffix == ".parquet":
            run = whatif(read_pipeline(options.path))
            print("\n".join(whatif_table(run)))
        else:
            _refuse_trace(options.path)
            run = explained_run(options.path)
            print("\n".join(table(run)))
        if file is not None:
            write_json(file, asdict(run))
    return Exit.OK


def _refuse_trace(path: Path) -> None:
    """Raise UsageError for a file of Chrome or Kineto that says what to do with it."""
    if not (path.is_file() and path.name.endswith(CHROME)):
        return
    if (path.parent / EVENTS).is_file():
        raise UsageError(
            f"{path}: a file of a run; give its folder: python -m bench explain {shlex.quote(str(path.parent))}"
        )
    raise UsageError(
        f"{path}: a trace has no causes of the time, only steps, which a prediction from a run can draw from: "
        f"python -m bench predict RUN_FOLDER --steps {shlex.quote(str(path))}"
    )


def located(folder: Path) -> Path:
    """Return the run folder, or the hidden one beside it of a run that has not ended. Raise ValueError."""
    return folder if (folder / EVENTS).is_file() else rewrite.locate(folder)


def records_in(folder: Path) -> tuple[RunSpec, RunHeader, list[Record]]:
    """Return the run in a folder, its first record, and the records after that; of a run that has not ended, those so
    far. Raise ValueError."""
    records = [record for _, record in rewrite.records(folder)]
    try:
        header = header_of(records)
    except ValueError as error:
        raise ValueError(f"{folder / EVENTS}: {error}") from None
    spec = msgspec.convert(header.spec, RunSpec)
    if not 1 <= spec.world_size <= MOST_RANKS:
        raise ValueError(f"{folder / EVENTS}: {spec.world_size} ranks; a run has 1 to {MOST_RANKS}")
    return spec, header, records[1:]


def explained_run(folder: Path) -> ExplainedRun:
    """Return where the time of the run in a folder, or of the hidden one beside it, went. Raise ValueError for an
    unreadable folder, UsageError for a run without timings."""
    folder = located(folder)
    spec, header, records = records_in(folder)
    launched = header.launched
    about = [f"its source is {spec.source}: these are times of a simulation"] if spec.source else []
    about += [] if ended(records) else [f"these are its times so far: {unended(folder)}"]
    if not spec.timing:
        raise UsageError(
            f"{folder}: its times say nothing, as cells ran beside it (timing=off); train it with timing=on"
        )
    last = max((record.at for record in records if hasattr(record, "at")), default=launched)
    links = parse(group_of(spec.config, "cluster").get("links") or (), spec.world_size)
    with of_run(folder):
        run = explained(sort(records, launched), spec.world_size, launched, last, links)
    if run is None:
        what = "give a run that trained something" if ended(records) else unended(folder)
        raise UsageError(f"{folder}: no rank measured where its time went; {what}")
    return replace(run, notes=(*about, *run.notes))


def ended(records: Sequence[Record]) -> RunEnd | None:
    """Return what the records of a run say of how it ended; None: nothing."""
    return records[-1] if records and isinstance(records[-1], RunEnd) else None


def table(run: ExplainedRun) -> list[str]:
    """Return the table as Markdown, followed by the ranks that made other ranks wait."""
    speed = f"{rate(run.samples_per_s)} samples/s from launch to end"
    rows = [
        _row(f"{each.rank}", NAMES.get(each.cause, each.cause), each.seconds, each.share, each.without)
        for each in run.causes
        if each.share >= SHOWN
    ]
    small = [cause for cause in run.causes if cause.share < SHOWN]
    if small:
        spent, share = sum(each.seconds for each in small), sum(each.share for each in small)
        rows.append(_row("all", f"{len(small)} causes under 0.1 %", spent, share, None))
    lines = [
        f"{run.rank_seconds:,.2f} rank-seconds of {run.ranks} ranks, {run.samples:,} samples: {speed}",
        *(f"- {note}" for note in run.notes),
        "",
        *markdown(("rank", "cause", "seconds", "share", "without it, samples/s"), rows),
    ]
    slow = [each for each in run.slow_ranks if each.share >= SHOWN]
    if slow:
        why = "that others waited for, that computed slower than the median rank, or whose link became slow"
        lines += ["", f"What ranks cost {why}:", ""]
    for each in slow:
        without = "" if each.without is None else f"; as fast as the others, {rate(each.without)} samples/s"
        lines.append(f"- rank {each.rank}: {each.seconds:,.2f} s, {100 * each.share:.1f} %{without}")
    if run.hidden:
        lines += [
            "",
            "Collectives lie in the backward passes: waiting is told by when these began, and is at least so much.",
        ]
    return lines


def whatif_table(figures: Whatif) -> list[str]:
    """Return the figures of a trace as Markdown: how fast the job would be without its stragglers."""
    lost = f"{figures.measured_s:.3f} s a step; without stragglers the job would be at {figures.ideal_s:.3f} s"
    groups = (("data-parallel rank", figures.by_rank), ("stage", figures.by_stage), ("", figures.by_kind))
    rows = [
        (f"{name} {key}".lstrip(), f"{value:.3f}")
        for name, slowdowns in groups
        for key, value in sorted(slowdowns.items(), key=lambda item: -item[1])[:MOST_SHOWN]
    ]
    workers = ", ".join(map(str, figures.workers))
    return [
        f"{lost}, {figures.slowdown:.3f} times as fast ({figures.steps} steps)",
        "",
        *markdown(("alone as it was", "times the ideal step"), rows),
        "",
        f"- with the worst workers ({workers}) healed {100 * figures.workers_part:.1f} % of the loss would be gone",
        f"- with the last stage healed {100 * figures.last_stage_part:.1f} %",
    ]


def _row(rank: str, cause: str, seconds: float, share: float, without: float | None) -> tuple[str, ...]:
    return rank, cause, f"{seconds:,.3f}", f"{100 * share:.1f} %", "" if without is None else rate(without)
