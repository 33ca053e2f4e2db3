"""The verb `faults`: the matrix of faults, in virtual time or in processes, with its heat map."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, path_of, usage
from bench.command.parser import Parser
from bench.faults.meaning import KINDS, MODES, PHASES, PROCESSES, RANKS, VIRTUAL, WORLDS, FaultCell, cells, meaningless
from bench.faults.outcome import FaultResult
from bench.faults.page import page
from bench.faults.store import ResultStore, body
from bench.faults.table import lines
from ddp.suggest import unknown

SIZES = {VIRTUAL: (8, 64), PROCESSES: (3,)}
MOST = {VIRTUAL: 4096, PROCESSES: 16}
LEAST = 3
CHOICES = {"modes": tuple(MODES), "kinds": tuple(KINDS), "phases": tuple(PHASES), "ranks": RANKS}


def add(parser: Parser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("--matrix", action="store_true", help="play the matrix: every kind in every phase")
    parser.add_argument("--world", default=VIRTUAL, choices=WORLDS, help="where (default: virtual)")
    for name, every in CHOICES.items():
        parser.add_argument(f"--{name}", metavar="A,B", help=f"of {', '.join(every)} (default: all)")
    parser.add_argument("--sizes", metavar="N,N", help="numbers of ranks (default: 8,64; in processes 3)")
    parser.add_argument("--out", type=path_of, default=Path("runs/faults"), help="folder (default: runs/faults)")
    parser.add_argument("--report", type=path_of, metavar="DIR", help="write table and heat map there (default: --out)")
    parser.add_argument("--fresh", action="store_true", help="play again what was played before")
    parser.add_argument("--json", type=path_of, metavar="FILE", help="write all results there")


def faults(options: argparse.Namespace) -> Exit:
    """Play the cells that are not in the folder yet, write table and heat map over all that are; REGRESSION if one is not
    as documented. Raises UsageError."""
    if not options.matrix:
        raise UsageError("nothing to play: give --matrix")
    with usage():
        wanted, sizes = _wanted(options), _sizes(options)
        store = ResultStore(options.out, options.fresh)
    _play(wanted, sizes, options.world, store)
    results = sorted(store.found.values(), key=_place)
    report = options.report or options.out
    with usage():
        report.mkdir(parents=True, exist_ok=True)
        (report / "README.md").write_text("\n".join(["# Faults", "", *lines(results)]) + "\n", encoding="utf-8")
        (report / "faults.html").write_text(page(results), encoding="utf-8")
    if options.json is not None:
        none = {str(cell): why for cell in wanted if (why := meaningless(cell, options.world))}
        with usage():
            content = {"cells": [body(result) for result in results], "no_meaning": none}
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines(results)))
    print(report / "faults.html")
    return Exit.OK if all(result.good for result in results) else Exit.REGRESSION


def _place(result: FaultResult) -> tuple[int, int, tuple[int, ...]]:
    cell = result.cell
    names = (cell.mode, cell.kind, cell.phase, cell.ranks)
    return (
        WORLDS.index(result.world),
        result.size,
        tuple(every.index(name) for every, name in zip(CHOICES.values(), names, strict=True)),
    )


def _play(wanted: Sequence[FaultCell], sizes: Sequence[int], world: str, store: ResultStore) -> None:
    """Play what has a meaning and is not stored; say how far it is, now and then."""
    play = _player(world)
    todo = [(cell, size) for size in sizes for cell in wanted if not meaningless(cell, world)]
    todo = [(cell, size) for cell, size in todo if (str(cell), world, size) not in store.found]
    for done, (cell, size) in enumerate(todo, 1):
        result = play(cell, size)
        store.add(result)
        if not result.good or done % 100 == 0:
            print(f"{done:,} of {len(todo):,}: {cell}, {size} ranks: {result.verdict}", file=sys.stderr, flush=True)


def _player(world: str) -> Callable[[FaultCell, int], FaultResult]:
    if world == VIRTUAL:
        from bench.faults.virtual import play

        return play
    from bench.faults.processes import play as play_processes

    return play_processes


def _wanted(options: argparse.Namespace) -> list[FaultCell]:
    """Return the cells that are asked for. Raises ValueError for names that are none."""
    names = {name: _names(name, getattr(options, name), every) for name, every in CHOICES.items()}
    if options.modes is None and options.world == VIRTUAL:
        names["modes"] = tuple(mode for mode in names["modes"] if mode not in ("zero2", "zero3"))
    return [
        cell
        for cell in cells(list(names["modes"]))
        if cell.kind in names["kinds"] and cell.phase in names["phases"] and cell.ranks in names["ranks"]
    ]


def _names(option: str, text: str | None, every: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return every
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in every:
            raise ValueError(f"--{option}: {unknown(option.removesuffix('s'), name, every)}")
    return chosen


def _sizes(options: argparse.Namespace) -> tuple[int, ...]:
    if options.sizes is None:
        return SIZES[options.world]
    texts = options.sizes.split(",")
    most = MOST[options.world]
    if not all(text.isdecimal() and LEAST <= int(text) <= most for text in texts):
        raise ValueError(f"--sizes {options.sizes}: give whole numbers from {LEAST} to {most}, such as 8,64")
    return tuple(int(text) for text in texts)
