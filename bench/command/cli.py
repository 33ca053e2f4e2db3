"""The command line: its verbs and their arguments. A first word that is no verb begins a configuration, which Hydra
reads.

Imports the code of a verb only when that verb runs, so that `list` and `--help` answer at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.base.exitcodes import Exit
from bench.base.garbage import no_collections
from bench.base.interrupts import check
from bench.base.paths import BASELINES, OWN_BASELINES, RUNS
from bench.base.usage import NO_ROOM, UsageError, path_of, reason, there, usage
from bench.command.parser import verb_parser
from bench.config.launch_settings import Settings, taken
from ddp.core.errors import EngineError
from ddp.launcher.environment import RAY, read


def dispatch(arguments: list[str]) -> int:
    """Run the command that `arguments` ask for; return its exit code."""
    verb, rest = (arguments[0], arguments[1:]) if arguments and arguments[0] in VERBS else ("run", arguments)
    try:
        return VERBS[verb](rest)
    except UsageError as error:
        return _said(error, Exit.USAGE)
    except EngineError as error:
        return _said(error, Exit.FAILED)
    except BrokenPipeError:  # the reader of our output has left
        raise
    except OSError as error:  # without a number it is our own: results that could not be written
        return _said(reason(error), Exit.FAILED if error.errno in (None, *NO_ROOM) else Exit.USAGE)


def _said(what: object, code: Exit) -> Exit:
    """Print an error on stderr, if stderr is open; return `code`. Raise KeyboardInterrupt if an interrupt caused the
    error."""
    check()
    with suppress(OSError):
        print(f"bench: {what}", file=sys.stderr)
    return code


def _run(arguments: list[str]) -> int:
    if {"--help", "-h"}.intersection(arguments):
        from bench.command.printed.help_page import show

        show()
        return Exit.OK
    from bench.runner import supervise

    launcher, supervised, arguments = _started(arguments)
    if launcher is not None:
        if supervised:
            remedy = "leave it out, and give the same command again for what was not finished"
            raise UsageError(
                f"supervise=true watches runs of this host, and launch=... submits them to others: {remedy}"
            )
        from bench.command.sweeps.submitted import submit

        return submit(arguments, tuple(VERBS), launcher)
    if supervised:
        return supervise.supervise(arguments)
    from bench.command.run import run

    with usage():
        placement = read(os.environ)
    if placement is not None and placement.launcher == RAY:  # an actor whose host is lost leaves no command behind
        from ddp.process.orphans import at_parents_end

        at_parents_end(signal.SIGKILL)
    if placement is not None and placement.world_size > 1:
        from bench.runner.machines import attended
        from ddp.remote.launched_process import process_of

        with usage():
            place = process_of(placement, os.environ)
        return attended(place, lambda machines: run(arguments, tuple(VERBS), BASELINES, machines))
    return run(arguments, tuple(VERBS), BASELINES)


def _started(arguments: list[str]) -> tuple[Settings | None, bool, list[str]]:
    """Return the launcher, whether to supervise, and the words of the configuration. Raise UsageError."""
    from bench.runner import supervise

    with usage():
        launcher, arguments = taken(arguments)
        return launcher, *supervise.requested(arguments)


def _plan(arguments: list[str]) -> int:
    from bench.command.verbs.plan_command import show

    launcher, _, arguments = _started(arguments)
    submitted = None if launcher is None else import_module("bench.command.sweeps.submitted").Points(settings=launcher)
    return show(arguments, tuple(VERBS), submitted)


def _report(arguments: list[str]) -> int:
    parser = verb_parser("report", "Write the report (Markdown, HTML and PNG) over a run folder or a tree of them.")
    parser.add_argument("path", type=path_of, nargs="?", default=RUNS, help="run folder or tree (default: runs)")
    parser.add_argument("--out", type=path_of, help="folder to write into (default: reports/<name of path>)")
    parser.add_argument(
        "--baseline", type=there, default=BASELINES, help="folder of baselines for the verdicts, or one of its files"
    )
    new = "an earlier tree: what is new, gone and changed"
    parser.add_argument("--previous", type=path_of, metavar="TREE", help=new)
    planned = "what was planned (default: the experiment that writes there)"
    parser.add_argument("--experiment", metavar="NAME", help=planned)
    own = "look for experiments in this folder too"
    parser.add_argument("--config-dir", "-cd", dest="presets", type=there, metavar="FOLDER", help=own)
    alone = "write no links to run folders, for readers who lack them"
    parser.add_argument("--self-contained", action="store_true", help=alone)
    options = parser.read(arguments)
    from bench.command.verbs.validate_command import some_runs
    from bench.report import write_report

    with usage(), no_collections():
        runs, problems = tree = some_runs(options.path)
        for problem in problems:
            print(f"bench: left out: {problem}", file=sys.stderr)
        if not runs:
            print(f"bench: no run in {options.path} can be read: mend it, or train it again", file=sys.stderr)
            return Exit.REFUSED
        out = options.out or Path("reports") / options.path.resolve().name
        named = ("baseline", "previous", "experiment", "presets", "self_contained")
        print(write_report(options.path, out, tree=tree, **{name: getattr(options, name) for name in named}))
    return Exit.OK


def _validate(arguments: list[str]) -> int:
    from bench.command.verbs import validate_command

    codes = "0 pass, 1 regression, 3 inconclusive, 4 not comparable, 5 a run failed"
    parser = verb_parser("validate", f"Compare runs with the baselines. Exit code: {codes}.")
    validate_command.add_validate(parser, RUNS, BASELINES)
    options = parser.read(arguments)
    with no_collections():
        return validate_command.validate(options)


def _baseline(arguments: list[str]) -> int:
    from bench.command.verbs import validate_command

    parser = verb_parser("baseline", "Make, change and list the baselines that validation compares with.")
    validate_command.add_baseline(parser, RUNS, BASELINES, OWN_BASELINES)
    return validate_command.baseline(parser.read(arguments))


def _on_a_path(verb: str, module: str, about: str, help: str = "run folder", **more: Any) -> Callable[[list[str]], int]:
    """Make a verb that takes one path. It runs the function of its name in a module in `bench.command`. `more`:
    further settings of the path's argument."""

    def command(arguments: list[str]) -> int:
        parser = verb_parser(verb, about)
        parser.add_argument("path", type=path_of, help=help, **more)
        path = parser.read(arguments).path
        return int(getattr(import_module(f"bench.command.{module}"), verb)(path))

    return command


def _on_a_sweep(verb: str, about: str) -> Callable[[list[str]], int]:
    return _on_a_path(verb, "sweeps.submitted", about, "tree of runs, or a sweep in it", nargs="?", default=RUNS)


def _more(arguments: list[str]) -> int:
    parser = verb_parser("more", "Train the seeds, or the baseline, that the verdicts on a run or a tree lack.")
    parser.add_argument("path", type=path_of, nargs="?", default=RUNS, help="run folder or tree (default: runs)")
    parser.add_argument("--baseline", type=there, default=BASELINES, help="folder of baselines, or one of its files")
    parser.add_argument("--show", action="store_true", help="print the commands, train nothing")
    options = parser.read(arguments)
    from bench.command.verbs.more_command import more

    return int(more(options.path, options.baseline, dispatch, options.show))


def _compare(arguments: list[str]) -> int:
    two = "two trees of runs; or two commits or machines, of the runs in --runs"
    parser = verb_parser("compare", f"Write what changed between {two}.")
    parser.add_argument("before", metavar="A", help="a tree, a commit or a machine")
    parser.add_argument("now", metavar="B", help="the same")
    parser.add_argument(
        "--runs", type=path_of, default=RUNS, help="tree of runs in which to look for commits and machines"
    )
    parser.add_argument("--out", type=path_of, default=Path("reports/comparison"), help="folder to write into")
    parser.add_argument("--github", action="store_true", help="append to the step summary (default in GitHub Actions)")
    options = parser.read(arguments)
    from bench.command.verbs.compare_command import compare

    with no_collections():
        return int(compare((options.before, options.now), options.runs, options.out, options.github))


def _prove(arguments: list[str]) -> int:
    from bench.command.verbs.prove_command import prove

    about = "Compare a few steps of a model in each mode with plain PyTorch on one device, bit by bit"
    parser = verb_parser(
        "prove", f"{about}. KEY=VALUE, or the folder of a script's run, choose what; all modes if none is given."
    )
    return int(prove(arguments, parser, tuple(VERBS)))


def _declared(verb: str, about: str) -> Callable[[list[str]], int]:
    """Return the command of a verb whose module has `add`, which declares the options, and a function with the verb's
    name."""

    def command(arguments: list[str]) -> int:
        module = import_module(f"bench.command.verbs.{verb}_command")
        parser = verb_parser(verb, about)
        module.add(parser)
        return int(getattr(module, verb)(parser.read(arguments)))

    return command


def _timeline(arguments: list[str]) -> int:
    from bench.command.verbs.timeline_command import timeline

    return int(timeline(arguments))


def _list(arguments: list[str]) -> int:
    from bench.command.verbs.listing import GROUPS, show

    parser = verb_parser("list", "What can be chosen: group=name on the command line.")
    parser.add_argument("group", nargs="?", help=f"one of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--config-dir", "-cd", type=there, metavar="FOLDER", help="list experiments of this folder too")
    options = parser.read(arguments)
    with usage():
        show(options.group, options.config_dir)
    return Exit.OK


def _doctor(arguments: list[str]) -> int:
    verb_parser("doctor", "What this machine can run, and why not the rest.").read(arguments)
    from bench.command.verbs.doctor import examine

    examine()
    return Exit.OK


def _dashboard(arguments: list[str]) -> int:
    from bench.command.verbs.dashboard_command import dashboard

    return int(dashboard(arguments, RUNS))


AUDIT = (
    "Repeat a run's recorded steps and evaluation in plain PyTorch: 0 equal, 1 different, 4 nothing is kept, 5 the audit "
    "failed; of several runs the worst."
)
RERUN = "Train the cell and seed of a run once more and compare bit for bit: 0 equal, 1 different."
REPLAY = "Feed a run's recorded events to the coordinator and compare its commands with the recorded ones."
GOODPUT = (
    "Simulate a history of failures with each way of continuing. The default takes about 5 minutes; "
    "fewer --ranks, --hours or --policies take less. "
    "Exit code: 0; 3 if a way did not finish in ten times the hours."
)
FAULTS = "Run the fault matrix: each kind, phase and choice of ranks; 1: not as documented."
JOIN = "Offer a running run a process, for an absent rank or the next lost one."
EXPLAIN = "Where the seconds of a run went, per rank and cause, and its speed without each."
PREDICT = "Predict the speed of other configurations by simulating the real scheduler with costs from runs."
VERBS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "plan": _plan,
    "report": _report,
    "validate": _validate,
    "more": _more,
    "compare": _compare,
    "baseline": _baseline,
    "rerun": _on_a_path("rerun", "verbs.rerun", RERUN),
    "replay": _on_a_path("replay", "verbs.rerun", REPLAY),
    "audit": _on_a_path("audit", "verbs.audit_command", AUDIT, "run folder, or tree of runs"),
    "prove": _prove,
    "goodput": _declared("goodput", GOODPUT),
    "faults": _declared("faults", FAULTS),
    "join": _declared("join", JOIN),
    "explain": _declared("explain", EXPLAIN),
    "predict": _declared("predict", PREDICT),
    "dashboard": _dashboard,
    "timeline": _timeline,
    "status": _on_a_sweep("status", "How the latest sweep of launch=slurm or launch=ray stands."),
    "cancel": _on_a_sweep("cancel", "Cancel the latest sweep of launch=slurm or launch=ray."),
    "list": _list,
    "doctor": _doctor,
}
"""First word -> command. `run` may be left out."""
JUDGING = ("report", "validate", "compare")
"""Verbs that read runs and end: they need no garbage collection."""
