"""The verb `dashboard`: serves a page over runs, or writes the page to a file. Judges cells when the page asks for
verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base.paths import BASELINES, judged_by
from bench.base.usage import file_of, path_of, there
from bench.command.parser import verb_parser

if TYPE_CHECKING:
    from bench.results.cells import Cell


def dashboard(arguments: list[str], runs: Path) -> int:
    """Serve the page, or export it."""
    if arguments[:1] == ["export"]:
        return _dashboard_export(arguments[1:])
    served = "Serve a page over runs, those in progress too"
    parser = verb_parser("dashboard", f"{served} (`dashboard export`: write it to a file).")
    parser.add_argument("path", type=path_of, nargs="?", default=runs, help="run folder or tree (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: only this machine)")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--baseline", type=there, default=BASELINES, help="folder of baselines, or one of its files")
    # Beside a run: serve on this, as long as it lasts.
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    options = parser.read(arguments)
    from bench.dashboard import command

    judge, stamp = _judge(options.baseline), partial(stamp_of, options.baseline)
    if options.socket is not None:
        return command.attend(options.path, options.socket, judge, stamp, options.private)
    return command.serve(options.path, options.host, options.port, judge, stamp)


def _judge(baseline: Path) -> Callable[[Sequence[Cell]], dict[str, dict[str, Any]]]:
    from bench.command.printed.cell_verdict import cell_verdicts

    return lambda cells: cell_verdicts(cells, baseline)


def stamp_of(baseline: Path) -> list[tuple[str, tuple[int, int]]]:
    """Return what changes with the baselines that runs are compared with, and with the known failures beside them."""
    from bench.dashboard.tree import mark
    from bench.validate.baselines.folder import files
    from bench.validate.expected import FILE

    try:
        folders = [(path, path if path.is_dir() else path.parent) for path in judged_by(baseline)]
        read = [file for path, folder in folders for file in (*files(path)[0], folder / FILE)]
    except OSError:  # whoever judges says that they cannot be read
        return []
    return [(str(file), mark(file)) for file in read]


def _dashboard_export(arguments: list[str]) -> int:
    parser = verb_parser(
        "dashboard export", "Write the dashboard over a run folder or a tree of them to one HTML file."
    )
    parser.add_argument("path", type=path_of, help="run folder or tree")
    parser.add_argument("--out", type=file_of, default=Path("dashboard.html"), help="default: dashboard.html")
    parser.add_argument("--baseline", type=there, default=BASELINES, help="folder of baselines, or one of its files")
    options = parser.read(arguments)
    from bench.dashboard.command import export

    return export(options.path, options.out, _judge(options.baseline))
