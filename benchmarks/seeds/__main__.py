"""Ours beside published tables: trains what is lacking, then prints the page.

python -m benchmarks.seeds                       # all of them: an hour or more on two cores; finished runs are kept
python -m benchmarks.seeds xtrain lesson         # some
python -m benchmarks.seeds --read --write        # of what is trained already, into reports/seeds
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.results.runfolder import Run, find_runs
from benchmarks import frame
from benchmarks.seeds import ddp_bench, lesson, needle_memory, needle_scaling, xtrain

REPORT = frame.REPORTS / "seeds"
TABLES: dict[str, Callable[[list[Run], Path | None], list[str]]] = {
    "needle_scaling": needle_scaling.section,
    "needle_memory": needle_memory.section,
    "xtrain": xtrain.section,
    "lesson": lesson.section,
    "ddp_bench": ddp_bench.section,
}
"""Experiment -> its part of the page, of its runs; a folder takes the JSON that it leaves."""
HEAD = """# Published tables, and ours beside them

    python -m benchmarks.seeds --write

Theirs are as published: by Needle (a deep learning framework) in its report on DDP, by xtrain in its design of DDP,
by the lesson "DDP and FSDP from scratch", and by floDl (Rust) for its suite ddp-bench. Ours are small enough for a
laptop: compare shapes, counts and differences, not seconds. The text below each table says what differs."""


def page(names: list[str], home: Path, out: Path | None) -> str:
    """Return the page of these experiments, of the runs below `home`."""
    parts = [HEAD]
    for name in names:
        folder = home / name
        runs = find_runs(folder)[0] if folder.is_dir() else []
        parts += TABLES[name](runs, out)
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Train, and print or write; return the worst exit code of training."""
    parser = frame.options(__doc__, "write reports/seeds/README.md and the JSON beside it")
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help=f"{', '.join(TABLES)} (default: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the experiments write (default: runs)")
    parser.add_argument("--read", action="store_true", help="train nothing")
    options = parser.parse_args()
    names = options.names or list(TABLES)
    if strange := [name for name in names if name not in TABLES]:
        parser.error(f"unknown experiment {strange[0]!r}; choose from {', '.join(TABLES)}")
    codes = [0]
    for name in [] if options.read else names:
        words = (f"experiment={name}", f"output={options.runs / name}")
        codes.append(subprocess.run([sys.executable, "-m", "bench", *words], check=False).returncode)
    if options.write:
        REPORT.mkdir(parents=True, exist_ok=True)
    text = page(names, options.runs, REPORT if options.write else None)
    if options.write:
        (REPORT / "README.md").write_text(text, encoding="utf-8")
    print(text)
    return max(codes)


if __name__ == "__main__":
    frame.run_command(main)
