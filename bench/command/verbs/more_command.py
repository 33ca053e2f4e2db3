"""The verb `more`: train the seeds, or the baseline, that verdicts lack for a decision."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from bench.base.exitcodes import Exit, gravest
from bench.base.usage import usage
from bench.command.verbs.validate_command import some_runs
from bench.results.cells import apart, cells
from bench.results.runfolder import METRICS
from bench.validate import judge_cells
from bench.validate.verdicts import next_runs

BENCH = "python -m bench "
"""Beginning of the commands that `more` can run. Runs of a script are left to the user, whose script sets its seed."""


def lacking(path: Path, baselines: Path) -> tuple[list[str], list[str]]:
    """Return the commands that train the runs missing for the verdicts on a tree, or on a run and its other seeds; and
    the lines of verdicts that refuse a run, which no command mends."""
    alone = (path / METRICS).is_file()
    with usage():
        runs, problems = some_runs(path.resolve().parent if alone else path)
        grouped = cells(runs)
        if alone:
            grouped, _ = apart(grouped, [path])
            problems = [line for line in problems if line.startswith(f"{path.resolve()}{os.sep}")]
        verdicts = judge_cells(grouped, [(path.name, line) for line in problems], baselines).verdicts
    commands = list(dict.fromkeys(verdict.more for verdict in verdicts if verdict.more))
    return commands, [v.text for v in verdicts if v.name == "REFUSED" and v.check == "readable"]


def more(path: Path, baselines: Path, run: Callable[[list[str]], int], show: bool = False) -> Exit:
    """Train the runs that verdicts lack; with `show`, only print the commands; of scripts say what to train. A new
    baseline is proposed, not accepted."""
    commands, refused = lacking(path, baselines)
    for line in refused:
        print(line)
    code = Exit.REFUSED if refused else Exit.OK
    scripts = [command for command in commands if not command.startswith(BENCH)]
    for command in scripts:  # whose seeds are in their own hands
        print(f"by hand: {command}")
        if f"output='{next_runs.BASELINES}'" in command:
            print(f"then: {next_runs.propose(baselines)} && {next_runs.accept(baselines)}")
    commands = [command for command in commands if command not in scripts]
    if not commands:
        if not scripts and not refused:
            print("nothing is lacking: no seed or baseline would change a verdict")
        return code
    new_baseline = any(shlex.split(command)[-1] == f"output={next_runs.BASELINES}" for command in commands)
    commands += [next_runs.propose(baselines)] if new_baseline else []
    codes = [code]
    for command in commands:
        print(command, flush=True)
        if not show:
            words = shlex.split(command)[3:]
            quiet = [] if words[0] == "baseline" else ["validate=false", "report=false"]
            codes.append(Exit(run([*words, *quiet])))
    if new_baseline:
        print(f"then, if the proposal is sound: {next_runs.accept(baselines)}")
    return gravest(codes)
