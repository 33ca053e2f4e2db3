"""Compares runs on two hosts with runs on one, and cuts the link between the hosts: torchrun, on two hosts made of
namespaces.

    python -m benchmarks.machines [--seeds 3] [--write]    # as root, on Linux; some minutes

`--write` puts the tables into docs/explanation/recovery.md.

Runs on one host and on two take turns, so that a busy machine disturbs both alike. `make machines` starts it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from bench.results.runfolder import find_runs
from bench.results.schema import Metrics
from benchmarks import frame
from benchmarks.documents import put
from benchmarks.namespaces import NETWORK, ROOT, Agent, Link, agents, possible, wait_for

MODES = ("nccl_sync", "nccl_cadence", "cpu_async")
DEADLINE_S = 5.0
"""Of runs whose link is cut."""
CUT_EPOCHS, CUT_AT = 60, 5
LIMIT_S = 240.0
"""Nothing takes as long, so what does hangs."""
QUIET = ("report=false", "validate=false")
DATA = ("data.name=digits",)
EPOCHS = 30


def found(folder: Path) -> Metrics:
    """The one run in a folder."""
    (run,), _ = find_runs(folder / "runs")
    return run.metrics


def alone(folder: Path, *words: str) -> Metrics:
    """A run on this host, with two ranks that it forks. RuntimeError if it does not end well."""
    command = [sys.executable, "-m", "bench", *words, "world_size=2", f"output={folder}/runs"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return found(folder)


def together(folder: Path, *words: str) -> Metrics:
    """A run over both hosts, uncut. RuntimeError if it does not end well."""
    words = (*words, f"output={folder}/runs", f"cluster.bind={NETWORK}")
    with Link() as link, agents(link, folder, *words) as both:
        wait_for(lambda: all(agent.over() for agent in both), LIMIT_S)
        if any(agent.process.returncode != 0 for agent in both):
            raise RuntimeError("\n".join(agent.said[-3000:] for agent in both))
    return found(folder)


@dataclass
class Cut:
    """What became of a run whose link was cut; seconds from the cut."""

    metrics: Metrics
    named_s: float
    """Until the lost rank was given up."""
    ended_s: float
    """Until the command on the first host had ended, its results written."""
    other_s: float
    """Until no process of the command was left on the other host."""
    agent_s: float
    """Until torchrun had ended there, too."""
    other: str
    """Its last words."""


def cut(folder: Path, tolerate: bool, *words: str) -> Cut:
    """A run whose link is cut in mid-training. RuntimeError if something hangs."""
    words = (*words, f"train.epochs={CUT_EPOCHS}", f"cluster.deadline_s={DEADLINE_S}", f"output={folder}/runs")
    words = (*words, f"cluster.tolerate_loss={str(tolerate).lower()}", f"cluster.bind={NETWORK}")
    with Link() as link, agents(link, folder, *words) as (here, there):
        wait_for(lambda: f"epoch {CUT_AT:2}/{CUT_EPOCHS}" in here.said or here.over(), LIMIT_S)
        if here.over() or here.said.count("epoch ") < CUT_AT:
            raise RuntimeError(f"it does not train: {here.said[-3000:]} {there.said[-3000:]}")
        link.cut()
        times = _times(link, folder, here, there)
        last = re.findall(r"^bench: (.*)", there.said, re.MULTILINE)
    return Cut(found(folder), *times, other=last[-1] if last else "")


def _times(link: Link, folder: Path, here: Agent, there: Agent) -> list[float]:
    """When what a `Cut` tells of happened, from now. RuntimeError if something hangs."""
    at, seen = time.monotonic(), {}
    signs = {
        "named": lambda: "rank 1 is lost" in here.said or "failed: rank 1" in here.said,
        "ended": lambda: bool(list(folder.glob("runs/*/*/w*/metrics.json"))) and not link.running(0),
        "other": lambda: not link.running(1),
        "agent": there.over,
    }

    def look() -> bool:
        for name, sign in signs.items():
            if name not in seen and sign():
                seen[name] = time.monotonic() - at
        return len(seen) == len(signs)

    if not wait_for(look, LIMIT_S):
        raise RuntimeError(f"it hangs; seen was {seen}: {here.said[-3000:]} {there.said[-3000:]}")
    return [seen[name] for name in signs]


@dataclass
class Row:
    """One mode."""

    one: list[Metrics] = field(default_factory=list)
    two: list[Metrics] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    """Going on, and not."""


def measure(seeds: int) -> dict[str, Row]:
    """Everything, mode by mode."""
    rows = {mode: Row() for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="machines-") as scratch:
        for mode, row in rows.items():
            for seed in range(seeds):
                words = ("model=mlp", *DATA, f"train.epochs={EPOCHS}", f"mode={mode}", f"seed={seed}", *QUIET)
                row.one.append(alone(_new(scratch, mode, "one", str(seed)), *words))
                row.two.append(together(_new(scratch, mode, "two", str(seed)), *words))
                print(
                    f"{mode} seed {seed}: one host {_accuracies(row.one[-1:])}, two {_accuracies(row.two[-1:])}",
                    flush=True,
                )
            for tolerate in (True, False):
                folder = _new(scratch, mode, "cut", str(tolerate))
                row.cuts.append(became := cut(folder, tolerate, "model=mlp", *DATA, f"mode={mode}", *QUIET))
                print(f"{mode} cut, tolerate_loss={tolerate}: {became.metrics.status}, named {became.named_s:.1f} s, "
                      f"ended {became.ended_s:.1f} s, other {became.other_s:.1f} s ({became.other}), "
                      f"its torchrun {became.agent_s:.1f} s", flush=True)  # fmt: skip
    return rows


def _new(scratch: str, *names: str) -> Path:
    folder = Path(scratch) / "-".join(names)
    folder.mkdir()
    return folder


def _accuracies(runs: list[Metrics]) -> str:
    return ", ".join(f"{run.final.eval:.4f}" for run in runs)


def table(rows: dict[str, Row]) -> str:
    """The page: accuracy, and cuts."""
    trained, cuts = [], []
    for mode, row in rows.items():
        gap = fmean(run.final.eval or 0.0 for run in row.two) - fmean(run.final.eval or 0.0 for run in row.one)
        both = {
            "one host": _accuracies(row.one),
            "two hosts": _accuracies(row.two),
            "difference of means": f"{gap:+.4f}",
        }
        through = {"averaging through": f"{row.one[0].transport} / {row.two[0].transport}"}
        trained.append({"mode": mode} | both | through)
        for policy, became in zip(("true", "false"), row.cuts, strict=True):
            eval_ = became.metrics.final.eval
            outcome = became.metrics.status + (f", accuracy {eval_:.4f}" if became.metrics.status == "ok" else "")
            times = {"named": became.named_s, "first command ended": became.ended_s}
            times |= {"other command ended": became.other_s, "its torchrun": became.agent_s}
            cuts.append(
                {"mode": mode, "tolerate_loss": policy, "outcome": outcome}
                | {name: f"{seconds:.1f}" for name, seconds in times.items()}
            )
    seeds = len(rows[MODES[0]].one)
    return (
        f"`mlp`, {EPOCHS} epochs of `digits` in batches of 16, two ranks, final accuracy of seeds 0 to {seeds - 1}:\n\n"
        f"{frame.table(trained)}\n\n"
        f"The link cut after epoch {CUT_AT} of {CUT_EPOCHS}, with `cluster.deadline_s={DEADLINE_S:g}`; seconds from the cut "
        "(where the run goes on, the first host trains on alone):\n\n"
        f"{frame.table(cuts)}\n"
    )


def main() -> None:
    """Run the command."""
    parser = frame.options(__doc__, "put the tables into docs/explanation/recovery.md")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    if why := possible():
        sys.exit(f"machines: {why}")
    made = table(measure(asked.seeds))
    print(made)
    if asked.write:
        put("explanation/recovery.md", machines=made)


if __name__ == "__main__":
    frame.run_command(main)
