"""Makes the figures and pictures of README.md from recorded runs. Needs an idle machine, a few minutes, and Chromium.

    python -m benchmarks.readme            # from the record that lies in docs/readme
    python -m benchmarks.readme --write    # trains the README's three commands again and replaces the record
    python -m benchmarks.readme --hour     # trains what docs/tutorial/first-hour.md prints

A test compares README and pictures with the record, and the record with the current recipe.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from rich.console import Console

from bench.base.exitcodes import Exit
from bench.base.paths import BASELINES
from bench.base.style import save_picture, styled
from bench.base.writing import write_text
from bench.command.printed.run_lines import disturbance
from bench.command.printed.summary import CellOutcome, Summary, show_run
from bench.report.blocks import Picture
from bench.report.page import Page, Table
from bench.report.sections import breakdown
from bench.results.cells import cells
from bench.results.runfolder import METRICS, Run, find_runs
from bench.results.schema import Metrics
from benchmarks import frame, page_one
from benchmarks.documents import DOCS, dark_twin, put, themed_picture

ROOT = DOCS.parent
RECORD = DOCS / "readme"
SAID = "out.txt"
PICTURE = DOCS / "images" / "unequal-devices.png"
RUN = "model=resnet_graph mode=nccl_cadence"
PAGE = "-m model=mlp mode=solo,nccl_sync,nccl_cadence,cpu_async seed=0,1,2"
SWEEP = "-m model=resnet_graph mode=solo,nccl_sync,nccl_cadence 'cluster.speeds=[1.0,0.4]' seed=0,1,2"
HOUR = "tutorial/first-hour.md"
LESSONS = {
    "trained": "model=mlp mode=nccl_cadence",
    "compared": f"{PAGE.removesuffix(',cpu_async seed=0,1,2')} 'cluster.speeds=[1.0,0.4]' seed=0,1,2 output=runs/unequal",
}


def bench(folder: Path, words: str) -> str:
    """Return what `python -m bench <words>` prints in `folder`. Raises CalledProcessError."""
    command = [sys.executable, "-m", "bench", *shlex.split(words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def train(folder: Path) -> None:
    """Run the commands in `folder`: `run`, `sweep` and `page`, each with what it printed in `said`."""
    for name, words in (("run", RUN), ("sweep", SWEEP), ("page", PAGE)):
        (folder / name).mkdir()
        (folder / name / SAID).write_text(bench(folder / name, words), encoding="utf-8")


def record(folder: Path) -> None:
    """Put what they left into the record."""
    RECORD.mkdir(exist_ok=True)
    (run,), _ = find_runs(folder / "run" / "runs")
    shutil.copyfile(run.path / METRICS, RECORD / "run.json")
    lines = (folder / "run" / SAID).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("verdict "))
    write_text(RECORD / "verdict.txt", "".join(f"{line}\n" for line in lines[first:-1]))
    runs, _ = find_runs(folder / "sweep" / "runs")
    # Windows and plans are most of a result, and nothing here shows them.
    short = [run.metrics.model_copy(update={"elche": None}).model_dump(mode="json") for run in runs]
    body = ",\n".join(map(json.dumps, short))
    write_text(RECORD / "sweep.json", f"[{body}]\n")
    page_one.record(folder / "page" / "runs", BASELINES)
    page_one.draw()


def recorded() -> tuple[Metrics, list[Metrics]]:
    """Return the result of the one run, and those of the sweep."""
    run = Metrics.model_validate_json((RECORD / "run.json").read_bytes())
    return run, [Metrics.model_validate(body) for body in json.loads((RECORD / "sweep.json").read_bytes())]


def ending(run: Metrics) -> str:
    """Return what a run prints at its end, as a block of code; of the verdict what was recorded."""
    folder = Path("runs") / run.model / run.mode / run.run_id
    said = io.StringIO()
    show_run(Summary(Console(file=said, width=200, highlight=False)), CellOutcome(run.run_id, Exit.OK, folder, run))
    verdict = (RECORD / "verdict.txt").read_text(encoding="utf-8").splitlines()
    lines = [*said.getvalue().strip().splitlines(), *verdict, f"report    {folder}/report.md"]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def claim(sweep: Sequence[Metrics]) -> str:
    """Return what the sweep shows, in words."""
    speeds = {(m.mode, m.seed): m.throughput.samples_per_s or 0.0 for m in sweep}
    seeds = sorted({m.seed for m in sweep})
    ratios = [speeds["nccl_cadence", seed] / speeds["nccl_sync", seed] for seed in seeds]
    idle = fmean(m.breakdown[0].wait + m.breakdown[0].comm for m in sweep if m.mode == "nccl_sync")
    ends = {mode: fmean(m.final.eval or 0.0 for m in sweep if m.mode == mode) for mode in ("nccl_sync", "nccl_cadence")}
    text = (
        "Why does it matter? Take two devices, the second emulated at 0.4 of the first one's speed. With synchronous "
        f"gradients the fast one waits or communicates for {idle:.0%} of its time. The El Che cadence keeps both at work: "
        f"{min(ratios):.1f} to {max(ratios):.1f} times as many samples per second over {len(seeds)} seeds, "
        f"at an accuracy of {ends['nccl_cadence']:.3f} against {ends['nccl_sync']:.3f}."
    )
    return textwrap.fill(text, 125)


class ThemedPage(Page):
    """A page that keeps its figures for dark pages too."""

    def figure(self, figure: Figure, name: str, data: Table, title: str, alt: str) -> Picture:
        """Write the figure as `Page` does, and its dark twin beside it."""
        picture = super().figure(figure, name, data, title, alt)
        save_picture(figure, self.out / dark_twin(f"{name}.png"), dark=True)
        return picture


def picture(sweep: Sequence[Metrics], folder: Path) -> Path:
    """Draw the report's picture of where the time went into `folder`, its dark twin beside it; return its file."""
    runs = [Run(folder / m.mode / m.run_id, m) for m in sweep]
    with styled():
        breakdown.section(ThemedPage(folder, folder, tuple(cells(runs)), (), ()))
    (made,) = (each for each in folder.glob("breakdown-*.png") if dark_twin(each).is_file())
    return made


def front(folder: Path) -> str:
    """Return the picture of page one, with the answer as its text; files go into `folder`."""
    shown = page_one.blocks(folder)
    picture = themed_picture(page_one.sentence(shown), str(page_one.PICTURE.relative_to(ROOT)))
    results, _ = page_one.recorded()
    busy = sum(disturbance(metrics) is not None for metrics in results)
    note = f"\n\n*Other programs used the processor during {busy} of these {len(results)} runs: intervals are wide.*"
    return picture + note * (busy > 0)


def write() -> None:
    """Make README and picture from the record."""
    run, sweep = recorded()
    with tempfile.TemporaryDirectory() as folder:
        put("../README.md", page=front(Path(folder)), run=ending(run), unequal=claim(sweep))
        made = picture(sweep, Path(folder))
        shutil.copyfile(made, PICTURE)
        shutil.copyfile(dark_twin(made), dark_twin(PICTURE))


def lessons(folder: Path) -> dict[str, str]:
    """Return what the commands of the first hour print, shortened, as blocks of code."""
    blocks = {}
    for name, words in LESSONS.items():
        lines = bench(folder, words).splitlines()
        result = next(number for number, line in enumerate(lines) if line.startswith(("accuracy ", "cell ")))
        head = lines[:2] if name == "trained" else []
        blocks[name] = "\n".join(f"    {line}".rstrip() for line in [*head, *lines[result:]])
    return blocks


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="train again first")
    parser.add_argument("--hour", action="store_true", help="train the first hour's runs again")
    options = parser.parse_args()
    if options.hour:
        with tempfile.TemporaryDirectory() as folder:
            put(HOUR, **lessons(Path(folder)))
    if options.write:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder))
            record(Path(folder))
    write()


if __name__ == "__main__":
    frame.run_command(main)
