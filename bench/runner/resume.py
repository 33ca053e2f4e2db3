"""`resume=RUN_FOLDER`: finds the checkpoint to resume from, its configuration, and the earlier records that count.

The configuration is that of the folder; the command may only change where results go and how checkpoints are made. The
new run keeps the earlier records of work that the checkpoint contains, so that the records of a resumed run count
every sample once. Does not know how checkpoints are made (`ddp.checkpoint.checkpoint`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench.config.config import Config
from bench.config.plan import RunPlan
from bench.config.user_parts import changed
from bench.results.lease import now, run_out
from bench.results.runfolder import CONFIG, EVENTS, FAILED, read_object, status, there, writer
from bench.runner.latest_checkpoint import find_latest
from bench.runner.resized import SIZED_KEYS, lineage, resizes, sized
from bench.runner.saved_config import config_of
from ddp.backends import BACKENDS
from ddp.checkpoint.checkpoint import Checkpoint
from ddp.engine.modes import Mode, backend_of, mode_of
from ddp.regular_files import lines

COMMAND = ("resume", "report", "validate", "force", "logger", "dashboard")
"""Keys that belong to a command, not to its run."""
FREE = (*COMMAND, "output", "data.dir", "cluster.deadline_s", "cluster.bind")
"""Keys that may be set with `resume`, besides those of `checkpoint`."""


@dataclass(frozen=True)
class ResumeSource:
    """A run that can be resumed."""

    folder: Path
    config: dict[str, Any]
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()
    """Lines on checkpoints that were skipped, as they are damaged or not in the records."""
    because: str = ""
    """What ended the run, if the command resumes it automatically."""

    def lineage(self, world_size: int) -> list[dict[str, int]]:
        """Return the record of earlier numbers of ranks for a run of `world_size` ranks that resumes from here
        (`bench.runner.resized`)."""
        return lineage(self.config, world_size, self.checkpoint.coordinator.samples)

    @property
    def output(self) -> str | None:
        """Return the tree that the run folder belongs to; None if it was moved out of one."""
        return _tree(self.folder, self.config)


def locate(path: Path, since: float = 0.0, job: str | None = None, killed: bool = False) -> ResumeSource | Path:
    """Return the run in or beside `path` with its latest checkpoint, or its folder if the run has finished.

    `path`: the place of a run folder, which may exist or may only have the hidden folder of a killed run beside it; or
    that hidden folder. Skips runs begun before the time `since`, by this host's clock, or by another `job` of a
    launcher, and if `killed` those that ended by themselves. Raise ValueError with the remedy; NoRun; NoCheckpoints;
    TornCheckpoints; GoingOn, also for a run of another job."""
    path = Path(path).absolute()
    if since:
        since += now(path.parent) - time.time()  # files have the time of their file system
    if status(path) == "ok" and _begun(path) >= since and (job is None or _job(path) == job):
        return path
    folders = [folder for folder in _beside(path, killed) if _begun(folder) >= since]
    for folder in folders:
        own = writer(folder)
        if own is not None and (own.here or not run_out(folder)):
            raise GoingOn(
                f"resume={path}: that run is still going on, in process {own.process}; wait for it, or end it"
            )
    folders = [folder for folder in folders if job is None or _job(folder) == job]
    if not folders:
        raise NoRun(f"resume={path}: no such run folder; give one, such as runs/<model>/<mode>/<run_id>")
    checkpoints, problems = [], []
    for folder in folders:
        checkpoint, torn = find_latest(folder)
        problems += torn
        if checkpoint is not None:
            checkpoints.append((folder, checkpoint))
    if not checkpoints:
        kind = TornCheckpoints if problems else NoCheckpoints if _makes_none(folders[0]) else ValueError
        raise kind(f"resume={path}: {problems[0] if problems else _none(folders[0])}; run it anew")
    folder, checkpoint = max(checkpoints, key=lambda entry: entry[1].coordinator.samples)
    try:
        config = read_object(folder / CONFIG)
    except ValueError as error:
        raise ValueError(f"resume={path}: {error}; put back a readable copy, or run it anew") from None
    return ResumeSource(folder, config, checkpoint, tuple(problems))


def _beside(path: Path, killed: bool = False) -> list[Path]:
    """Return the existing folders of the run in or beside `path`; if `killed`, those of runs without an end."""
    folders = [path]
    if not path.name.startswith("."):
        folders += [path.with_name(path.name + FAILED), *sorted(path.parent.glob(f".tmp-{path.name}-*"))]
    ended = [folder for folder in folders if killed and not folder.name.startswith(".") and status(folder)]
    return [folder for folder in folders if folder.is_dir() and folder not in ended]


class NoRun(ValueError):
    """Raised if there is no run."""


class GoingOn(ValueError):
    """Raised if a process is still writing the run."""


class TornCheckpoints(ValueError):
    """Raised if all checkpoints of a run are damaged."""


class NoCheckpoints(ValueError):
    """Raised for a run of a mode that makes no checkpoints."""


def _makes_none(folder: Path) -> bool:
    try:
        backend = backend_of(_mode(read_object(folder / CONFIG)))
    except (ValueError, KeyError):
        return False
    return backend is not None and not backend.checkpoints


def begun_anew(
    path: Path, command: Config, settings: Mapping[str, Any], ranks: int | None = None
) -> tuple[Config, str]:
    """Return the configuration of the run in `path`, whose mode makes no checkpoints, and a note that the run begins
    anew. `ranks`: see `configured`. Raise ValueError for settings that contradict the run."""
    path = path.absolute()
    folder = _beside(path)[0]
    saved = read_object(folder / CONFIG)
    note = f"{folder}: mode={_mode(saved).name} makes no checkpoints: the run begins anew"
    return _configured(command, settings, saved, folder, _tree(folder, saved), ranks), note


def _tree(folder: Path, config: Mapping[str, Any]) -> str | None:
    mode = folder.absolute().parent
    known = (mode.parent.name, mode.name) == (config.get("model"), _mode(dict(config)).name)
    return str(mode.parent.parent) if known else None


def _begun(folder: Path) -> float:
    """Return when the run was begun, seconds since the epoch; 0 if unknown."""
    try:
        return (folder / CONFIG).stat().st_mtime
    except OSError:
        return 0.0


def _job(folder: Path) -> str | None:
    """Return the launcher's job of a run; None if it has none or its records do not say."""
    with suppress(ValueError, OSError, KeyError, TypeError, StopIteration, msgspec.MsgspecError):
        return str(msgspec.json.decode(next(lines(folder / EVENTS)))["env"]["launcher"]["job"])
    return None


def _none(folder: Path) -> str:
    """Return why the run has no checkpoint. Raise ValueError if the folder is not a run."""
    if not there(folder / CONFIG):
        raise ValueError(f"resume={folder}: no run folder; give one, such as runs/<model>/<mode>/<run_id>")
    try:
        config = read_object(folder / CONFIG)
    except ValueError as error:
        return str(error)
    if config.get("script"):
        return "it is a script's: its checkpoints lie where its Trainer was told, which goes on from them by resume=..."
    settings = config.get("checkpoint") or {}
    if not isinstance(settings, dict) or not settings.get("every"):
        return "it has no checkpoint: it was run with checkpoint.every=0"
    how = f"every {settings['every']} {settings.get('unit')}, {settings.get('spacing_s')} s or more apart"
    return f"it has no checkpoint: it ended before the first one ({how}: see checkpoint.spacing_s)"


def agree(settings: Mapping[str, Any], saved: dict[str, Any], free: Collection[str] = FREE) -> None:
    """Raise ValueError for `settings` of the command line, by key, that contradict the configuration of the run;
    ignore the `free` keys."""
    for key, value in settings.items():
        if key in free or key.startswith("checkpoint."):
            continue
        # A backend with one policy was an engine once, and may be called so.
        was = _was(saved, "mode" if key == "engine" and value in BACKENDS else key)
        if value != was:
            raise ValueError(
                f"{key}={value} contradicts the run, which has {was}: a resumed run keeps its settings; leave {key} out, "
                "or start a new run without resume"
            )


def check_finished(settings: Mapping[str, Any], folder: Path) -> None:
    """Raise ValueError for settings with which the finished run in `folder` cannot be resumed."""
    saved = read_object(folder / CONFIG)
    other = resizes(settings, saved)
    agree(settings, saved, (*FREE, *SIZED_KEYS) if other else FREE)
    if other:
        raise ValueError(
            f"resume={folder}: that run has finished and keeps no checkpoint for {settings['world_size']} ranks to "
            "go on from; leave world_size out, or start a new run without resume"
        )


def configured(command: Config, settings: Mapping[str, Any], source: ResumeSource, ranks: int | None = None) -> Config:
    """Return the configuration of the resumed run. `settings`: the keys of `command` that the command line sets;
    `ranks`: how many a launcher has started, None without one.

    Raise ValueError for settings that contradict the run."""
    return _configured(command, settings, source.config, source.folder, source.output, ranks)


def _configured(
    command: Config,
    settings: Mapping[str, Any],
    saved: dict[str, Any],
    folder: Path,
    tree: str | None,
    ranks: int | None,
) -> Config:
    if ranks is not None and saved.get("world_size") != 1:
        settings = {"world_size": ranks, **settings}
        command = replace(command, world_size=settings["world_size"])
    other = resizes(settings, saved)
    agree(settings, saved, (*FREE, *SIZED_KEYS) if other else FREE)
    own = config_of(saved, folder)
    if other:
        own = sized(settings, command, own)
    output = command.output if "output" in settings else tree or own.output
    data, cluster = own.data, own.cluster
    if "data.dir" in settings:
        data = replace(data, dir=command.data.dir)
    for name in ("deadline_s", "bind"):
        if f"cluster.{name}" in settings:
            cluster = replace(cluster, **{name: getattr(command.cluster, name)})
    if ranks is not None:  # a launcher starts none beside these
        cluster = replace(cluster, restart="never", absent=0, spares=0)
    new = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("checkpoint.")}
    own = replace(own, **{name: getattr(command, name) for name in COMMAND})
    return replace(own, output=output, data=data, cluster=cluster, checkpoint=replace(own.checkpoint, **new))


def check(plan: RunPlan, source: ResumeSource) -> None:
    """Raise ValueError if `plan`, with the same number of ranks, makes another run than the resumed one."""
    if plan.spec.run_id != source.config.get("run_id"):
        why = changed(source.config, plan.spec.config)
        raise ValueError(
            f"{source.folder}: this version makes another run of its configuration ({plan.spec.run_id}){why}; begin that "
            "one anew, or go on with the version that this one was begun with"
        )


def _was(saved: dict[str, Any], key: str) -> Any:
    """Return the run's value for a key of the command line, or None."""
    if key in ("mode", "engine", "policy", "backend"):
        mode = _mode(saved)
        return mode.name if key == "mode" else getattr(mode, key)
    if key == "model.depth":
        return saved.get("depth")
    value: Any = saved
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _mode(saved: dict[str, Any]) -> Mode:
    policy = saved.get("policy")
    name = policy.get("name") if isinstance(policy, dict) else None
    policy_name, backend = (value if isinstance(value, str) else None for value in (name, saved.get("backend")))
    return mode_of(str(saved.get("engine")), policy_name, backend)
