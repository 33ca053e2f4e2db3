"""The verb `dashboard`: serves a page over runs, or writes the page to a file. Judges cells when the page asks for
verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base.paths import BASELINES
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

    judge = _judge(options.baseline)
    if options.socket is not None:
        return command.attend(options.path, options.socket, judge, options.private)
    return command.serve(options.path, options.host, options.port, judge)


def _judge(baseline: Path) -> Callable[[Sequence[Cell]], dict[str, dict[str, Any]]]:
    from bench.command.printed.cell_verdict import cell_verdicts

    return lambda cells: cell_verdicts(cells, baseline)


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
