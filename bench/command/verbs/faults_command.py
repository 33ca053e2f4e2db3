"""The verb `faults`: runs the matrix of injected faults, in virtual time or in real processes, and draws its heat
map."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, path_of, usage, writable
from bench.base.writing import write_json, write_text
from bench.command.parser import Parser
from bench.faults.meaning import KINDS, PHASES, PROCESSES, RANKS, VIRTUAL, WORLDS, FaultCell, cells, meaningless
from bench.faults.modes import MODES
from bench.faults.outcome import FaultResult
from bench.faults.page import page
from bench.faults.played import Place, Player, play_missing
from bench.faults.store import ResultStore, body
from bench.faults.table import lines
from ddp.regular_files import content
from ddp.suggest import unknown

SIZES = {VIRTUAL: (8, 64), PROCESSES: (3,)}
MOST = {VIRTUAL: 4096, PROCESSES: 16}
LEAST, MOST_JOBS = 3, 64
EVERY_WORLD = "all"
README = "README.md"
HEAD = (
    "# Faults",
    "",
    "`make faults` plays the cells without a result and writes this page. [Heat map](faults.html)",
    "",
    "*Cell*: one kind of fault, in one phase of a run, on some ranks, in one mode. *Unhurt*: no rank was lost.",
    "*Went on*: without the lost ranks. *Ended*: with an error. *Resumed*: a second run continued from a checkpoint. In all",
    "but *ended*, every sample is in the model exactly once. *No meaning*: cannot happen in this mode. Times are seconds",
    "after the fault: until it was *noticed*, until other ranks worked again (*going on*), until all did (*full strength*);",
    "median / worst, as are the samples trained again (*repeated*). Resumed runs are among them, timed from when they are",
    "resumed; what a run trained whose coordinator was killed is not known. Virtual: a step takes 1 s, a start 2 s, the",
    "deadline is 20 s. Processes: steps of 4 ms, a deadline of 4 s.",
    "",
)
"""Name of the table's file, and its first lines."""
CHOICES = {"modes": tuple(MODES), "kinds": tuple(KINDS), "phases": tuple(PHASES), "ranks": RANKS}


def add(parser: Parser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("--matrix", action="store_true", help="play the matrix: every kind in every phase")
    parser.add_argument("--world", default=VIRTUAL, choices=(*WORLDS, EVERY_WORLD), help="where (default: virtual)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="combinations to play at a time (default: 1)")
    for name, every in CHOICES.items():
        parser.add_argument(f"--{name}", metavar="A,B", help=f"of {', '.join(every)} (default: all)")
    parser.add_argument("--sizes", metavar="N,N", help="numbers of ranks (default: 8,64; in processes 3)")
    parser.add_argument("--out", type=path_of, default=Path("runs/faults"), help="folder (default: runs/faults)")
    parser.add_argument("--report", type=path_of, metavar="DIR", help="write table and heat map there (default: --out)")
    parser.add_argument("--fresh", action="store_true", help="repeat combinations that were played before")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write all results there")


def faults(options: argparse.Namespace) -> Exit:
    """Run the cells that have no result in the folder yet; write a table and a heat map of all results. Return
    REGRESSION if a result differs from the documentation. Raises UsageError, and ValueError for `--jobs`."""
    if not options.matrix:
        raise UsageError("nothing to play: give --matrix")
    worlds = WORLDS if options.world == EVERY_WORLD else (options.world,)
    with usage():
        _check_report(options.report or options.out)
        wanted = _wanted(options, worlds)
        sizes = {world: _sizes(options, world) for world in worlds}
        if not 1 <= options.jobs <= MOST_JOBS:
            raise ValueError(f"--jobs {options.jobs}: give a whole number from 1 to {MOST_JOBS}")
        chosen = {(str(cell), world, size) for world in worlds for size in sizes[world] for cell in wanted}
        store = ResultStore(options.out, chosen if options.fresh else ())  # last, as it deletes
    try:
        for world in worlds:
            _play(wanted, sizes[world], world, store, options.jobs)
    except BaseException:
        _write(options, store, wanted, worlds)
        print(f"cut short: the same command plays the rest{', without --fresh' * options.fresh}", flush=True)
        raise
    _write(options, store, wanted, worlds)
    return Exit.OK if all(result.good for result in store.found.values()) else Exit.REGRESSION


def _write(options: argparse.Namespace, store: ResultStore, wanted: Sequence[FaultCell], worlds: Sequence[str]) -> None:
    """Write the table and the heat map of all results in the store."""
    results, report = sorted(store.found.values(), key=_place), options.report or options.out
    text = lines(results)
    with usage():
        report.mkdir(parents=True, exist_ok=True)
        write_text(report / README, "\n".join([*HEAD, *text]) + "\n")
        write_text(report / "faults.html", page(results))
        if options.json is not None:
            none = {str(cell): why for cell in wanted if all(why := meaningless(cell, world) for world in worlds)}
            write_json(options.json, {"cells": [body(result) for result in results], "no_meaning": none})
    print("\n".join(text))
    print(report / "faults.html")


def _check_report(folder: Path) -> None:
    """Raise ValueError if the table cannot be written there, or would replace a file that is no such table, such as the
    README of a project."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to: give another folder, --report DIR")
    path = folder / README
    if path.exists() and not content(path).startswith(HEAD[0].encode()):
        raise ValueError(f"{path} is no table of faults and would be replaced: give another folder, --report DIR")


def _place(result: FaultResult) -> tuple[int, int, tuple[int, ...]]:
    cell = result.cell
    names = (cell.mode, cell.kind, cell.phase, cell.ranks)
    return (
        WORLDS.index(result.world),
        result.size,
        tuple(every.index(name) for every, name in zip(CHOICES.values(), names, strict=True)),
    )


def _play(wanted: Sequence[FaultCell], sizes: Sequence[int], world: str, store: ResultStore, jobs: int) -> None:
    """Run the cells that have a meaning and no stored result, in an order that looks random."""
    places = sorted(((cell, size) for size in sizes for cell in wanted), key=_drawn)
    play_missing(places, world, store, _player(world), jobs)


def _drawn(place: Place) -> bytes:
    """Return a hash to sort cells by, so that the cells done before an interruption are a random sample of all."""
    return hashlib.sha256(f"{place[0]} {place[1]}".encode()).digest()


def _player(world: str) -> Player:
    if world == VIRTUAL:
        from bench.faults.virtual import play

        return play
    from bench.faults.processes import play as play_processes

    return play_processes


def _wanted(options: argparse.Namespace, worlds: Sequence[str]) -> list[FaultCell]:
    """Return the cells that the options select. Raises ValueError for unknown names, or if no cell has a meaning."""
    names = {name: _names(name, getattr(options, name), every) for name, every in CHOICES.items()}
    chosen = [
        cell
        for cell in cells(list(names["modes"]))
        if cell.kind in names["kinds"] and cell.phase in names["phases"] and cell.ranks in names["ranks"]
    ]
    if all(meaningless(cell, world) for cell in chosen for world in worlds):
        first, why = chosen[0], meaningless(chosen[0], worlds[0])
        raise ValueError(f"nothing to play: no cell of these has a meaning ({first}: {why}); choose others")
    return chosen


def _names(option: str, text: str | None, every: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return every
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in every:
            raise ValueError(f"--{option}: {unknown(option.removesuffix('s'), name, every)}")
    return chosen


def _sizes(options: argparse.Namespace, world: str) -> tuple[int, ...]:
    if options.sizes is None:
        return SIZES[world]
    texts, most = options.sizes.split(","), MOST[world]
    if not all(text.isdecimal() and LEAST <= int(text) <= most for text in texts):
        raise ValueError(f"--sizes {options.sizes}: give whole numbers from {LEAST} to {most}, such as 8,64")
    return tuple(int(text) for text in texts)
