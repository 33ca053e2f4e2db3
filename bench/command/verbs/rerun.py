"""The verbs `rerun` and `replay`: train a run again, or feed its events to the coordinator again, and compare. They
write no run folder."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.exitcodes import STATUS, Exit, gravest
from bench.base.number_format import plural
from bench.base.usage import UsageError, usage
from bench.config.user_parts import changed
from bench.results.runfolder import CONFIG, Run, find_runs, read_object
from bench.validate.checks.determinism import broken, promised, unlike
from bench.validate.evidence.consistency import legible

if TYPE_CHECKING:
    from bench.results.schema import Metrics


def rerun(folder: Path) -> Exit:
    """Train the same cell and seed again, in a temporary folder, and print how the results compare.

    Return exit code 1 if results differ that the mode promises to reproduce bit for bit, 3 if it promises none."""
    from bench.base import environment

    with usage():
        run = run_in(folder)
        if refused := _refused(run):
            return refused
    if run.config.get("resized"):
        print(f"REFUSED    {folder}: its number of ranks changed on its way: only its checkpoint leads there")
        return Exit.REFUSED
    with tempfile.TemporaryDirectory(prefix="bench-rerun-", ignore_cleanup_errors=True) as elsewhere:
        after = _script_again(run, Path(elsewhere)) if run.config.get("script") else _trained_again(run, elsewhere)
    if after.status == "killed":
        raise KeyboardInterrupt
    if after.status != run.metrics.status:
        word = "FAILED    " if after.status == "failed" else "DIFFERENT "
        print(f"{word} {folder}: it ended {run.metrics.status}, and {after.status} now")
        return gravest((STATUS[after.status], Exit.REGRESSION))
    if after.status == "failed":
        print(f"FAILED     {folder}: it failed then, and fails now: {after.error}")
        return Exit.FAILED
    code = compare(run, after)
    if code is not Exit.OK:
        for line in _surroundings(run.metrics, environment.describe(), environment.source()):
            print(f"  {line}")
    return code


def _script_again(run: Run, output: Path) -> Metrics:
    """Run the script of a run again; return the new metrics. Raise UsageError."""
    from bench.runner.script_again import rerun_script

    with usage():
        return rerun_script(run, output).metrics


def _trained_again(run: Run, output: str) -> Metrics:
    """Train a run of a registered model again; return the new metrics. Raise UsageError."""
    from rich.console import Console

    from bench.command.cell_plan import make_plan
    from bench.runner.automatic_restart import launch_with_restarts
    from bench.runner.saved_config import config_of

    with usage():
        config = config_of(read_object(run.path / CONFIG), run.path)
    plan = make_plan(replace(config, output=output))
    if plan.spec.run_id != run.metrics.run_id:
        why = changed(run.config, plan.spec.config)
        raise UsageError(f"{run.path}: this version makes another run of its configuration ({plan.spec.run_id}){why}")
    return launch_with_restarts(plan, Console(highlight=False), None, 0).metrics


def compare(run: Run, after: Metrics) -> Exit:
    """Print how a run compares with another one of its cell and seed; return the exit code."""
    folder, before = run.path, run.metrics
    apart = unlike(before, after)
    differences = broken(apart, run.config)
    if not differences and before.params_sha256 is None:
        print(f"INCONCLUSIVE {folder}: neither run has a digest of its parameters to compare")
        return Exit.INCONCLUSIVE
    if not differences:
        digest, epochs = str(before.params_sha256)[:16], plural(len(before.epochs), "epoch")
        print(f"EQUAL      {folder}: the same bits: parameters {digest}, {epochs}")
        if apart:
            print(f"  what its steps recorded differs, as times do: {apart[0]}")
        return Exit.OK
    print(f"DIFFERENT  {folder}: {len(differences)} of the digest, losses, metrics and counts differ; {differences[0]}")
    if promised(before, run.config):
        return Exit.REGRESSION
    why = "its schedule follows the speeds of the ranks, or a GPU adds in any order unless train.deterministic is set"
    print(f"  mode {before.mode} does not promise equal bits: {why}")
    return Exit.INCONCLUSIVE


def _surroundings(before: Metrics, env: dict[str, object], git: dict[str, object]) -> list[str]:
    """Return the differences in machine, versions and source since the run."""
    was, now = {**before.env, **before.git}, {**env, **git}
    changed = [key for key in now if key not in ("load_1min", "memory_bytes") and was.get(key) != now[key]]
    return [f"{key}: {was.get(key)} then, {now[key]} now" for key in changed]


def _refused(run: Run) -> Exit | None:
    """Print why a run's folder cannot be trusted, and return the exit code; None if it can."""
    try:
        legible(run)
    except ValueError as error:
        print(f"REFUSED    {error}")
        return Exit.REFUSED
    return None


def run_in(folder: Path) -> Run:
    """Return the run in a run folder. Raise ValueError if it cannot be read."""
    runs, problems = find_runs(folder)
    if len(runs) != 1 or runs[0].path != folder:
        raise ValueError(problems[0] if problems else f"{folder} is not a run folder, runs/<model>/<mode>/<run_id>")
    return runs[0]


def replay(folder: Path) -> Exit:
    """Feed the recorded events to the core's coordinator. Print the first place where its commands, or the losses and
    metrics derived from them, differ from the recorded ones.

    Return exit code 1 if they do, 4 if nothing can be replayed or the folder was changed."""
    from bench.base import environment
    from bench.runner.replay import Unfit, deviation, mislearnt

    with usage():
        run = run_in(folder)
        if refused := _refused(run):
            return refused
        try:
            checked, first = deviation(run)
            first = first or mislearnt(run)
        except Unfit as error:
            print(f"REFUSED    {folder}: {error}")
            return Exit.REFUSED
    if first is None:
        gives = f"the core gives the {checked} recorded commands for the recorded events"
        print(f"EQUAL      {folder}: {gives}, and losses and metrics follow from them")
        return Exit.OK
    print(f"DIFFERENT  {folder}: {first}")
    for line in _surroundings(run.metrics, {}, environment.source()):
        print(f"  {line}: another core may decide otherwise")
    return Exit.REGRESSION
