"""The verb `timeline`: writes the timeline of a run folder again, exports it to another tool's format, or opens it."""

from __future__ import annotations

from bench.base.exitcodes import Exit
from bench.base.usage import path_of, usage
from bench.command.parser import verb_parser


def timeline(arguments: list[str]) -> Exit:
    """Write the timeline files or open the page. Raise UsageError."""
    written = (
        "Write the timeline of a run folder again (timeline.json, .html, .csv, .png), of a run that was killed too"
    )
    parser = verb_parser("timeline", f"{written}; or open one in Perfetto.")
    opens = arguments[:1] == ["open"]
    parser.add_argument("path", type=path_of, metavar="[open] RUN", help="run folder")
    if opens:
        parser.prog += " open"
        parser.add_argument("--no-browser", action="store_true", help="print the address instead of starting a browser")
    else:
        parser.add_argument("--to", metavar="FORMAT", help="write another format instead: chakra")
    options = parser.read(arguments[opens:])
    from bench.timeline import FILES
    from bench.timeline.rewrite import export, locate, rewrite

    with usage():
        if opens:
            from bench.timeline.serve import serve

            folder = locate(options.path)
            serve(folder if (folder / "timeline.html").is_file() else rewrite(folder), not options.no_browser)
        elif options.to is not None:
            print(*export(options.path, options.to), sep="\n")
        else:
            folder = rewrite(options.path)
            print(*(place for name in FILES if (place := folder / name).is_file()), sep="\n")
    return Exit.OK
