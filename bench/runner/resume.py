"""`resume=RUN_FOLDER`: which checkpoint to go on from, with which configuration, and what of the earlier records counts.

The configuration is the folder's own; what is said beside it may only concern where results go and how checkpoints are made.
Of the earlier records, those stay that the checkpoint's model knows of, so the records of a run that was gone on with tell
of every sample once. Knows nothing of how a checkpoint is made (`ddp.checkpoint.checkpoint`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench.results.runfolder import CHECKPOINTS, CONFIG, EVENTS, FAILED, read_object, status, writer
from bench.runner.config import Choice, ClusterConfig, Config, DataConfig, ModelConfig, ProfileConfig, TrainConfig
from bench.runner.modes import mode_name
from bench.runner.plan import RunPlan
from ddp import regular
from ddp.backends import BACKENDS
from ddp.checkpoint.checkpoint import Checkpoint, find
from ddp.core.averaging import Averaging
from ddp.core.checkpointing import Checkpointing
from ddp.core.commands import CoordinatorCheckpoint, Evaluate
from ddp.core.errors import ProtocolError
from ddp.core.events import Averaged, Evaluated, Merged, Progress, Resumed, Saved, Snapshot
from ddp.core.loading import Loading
from ddp.core.spans import Span, Spans, union
from ddp.process.codec import decode, encode

FREE = ("resume", "output", "report", "validate", "force", "logger", "dashboard", "data.dir", "cluster.deadline_s")
"""Keys that may be said beside `resume`; and those of `checkpoint`."""


@dataclass(frozen=True)
class ResumeSource:
    """A run that can be gone on with."""

    folder: Path
    config: dict[str, Any]
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()
    """Checkpoints that were passed over."""

    @property
    def output(self) -> str | None:
        """The tree that the run folder belongs to; None if it was moved out of one."""
        mode = self.folder.absolute().parent
        known = (mode.parent.name, mode.name) == (self.config.get("model"), _mode(self.config))
        return str(mode.parent.parent) if known else None


def locate(path: Path, since: float = 0.0) -> ResumeSource | Path:
    """The run in or beside `path`, with its latest checkpoint; the folder itself if that run is finished.

    `path` is the place of a run folder, whether one lies there or only the hidden folder of a run that was killed; or that
    hidden folder. Runs that were begun before the time `since` are passed over. Raises ValueError with the remedy.
    """
    path = Path(path).absolute()
    if status(path) == "ok" and _begun(path) >= since:
        return path
    beside = [] if path.name.startswith(".") else [path.with_name(path.name + FAILED), *_hidden(path)]
    folders = [folder for folder in (path, *beside) if folder.is_dir() and _begun(folder) >= since]
    if not folders:
        raise ValueError(f"resume={path}: no such run folder; give one, such as runs/<model>/<mode>/<run_id>")
    for folder in folders:
        if (process := writer(folder)) is not None:
            raise ValueError(f"resume={path}: that run is still going on, in process {process}; wait for it, or end it")
    found, problems = [], []
    for folder in folders:
        checkpoint, torn = find(folder / CHECKPOINTS)
        problems += torn
        if checkpoint is not None:
            found.append((checkpoint.books.samples, folder, checkpoint))
    if not found:
        raise ValueError(f"resume={path}: {problems[0] if problems else _none(folders[0])}; run it anew")
    _, folder, checkpoint = max(found, key=lambda entry: entry[0])
    return ResumeSource(folder, read_object(folder / CONFIG), checkpoint, tuple(problems))


def _begun(folder: Path) -> float:
    """When that run was begun, seconds since the epoch; 0: it does not tell."""
    try:
        return (folder / CONFIG).stat().st_mtime
    except OSError:
        return 0.0


def _hidden(path: Path) -> Iterable[Path]:
    return sorted(path.parent.glob(f".tmp-{path.name}-*"))


def _none(folder: Path) -> str:
    try:
        said = read_object(folder / CONFIG).get("checkpoint") or {}
    except ValueError as error:
        return str(error)
    if not isinstance(said, dict) or not said.get("every"):
        return "it has no checkpoint: it was run with checkpoint.every=0"
    how = f"every {said['every']} {said.get('unit')}, {said.get('spacing_s')} s or more apart"
    return f"it has no checkpoint: it ended before the first one ({how}: see checkpoint.spacing_s)"


def agree(said: Mapping[str, Any], saved: dict[str, Any]) -> None:
    """Raise ValueError for what the command line has `said`, by key, against the configuration of the run."""
    for key, value in said.items():
        if key in FREE or key.startswith("checkpoint."):
            continue
        was = _was(saved, "mode" if key == "engine" and value in BACKENDS else key)
        if value != was:
            raise ValueError(
                f"{key}={value} contradicts the run, which has {was}: it goes on as it was begun; leave {key} out, or "
                "begin a run of its own without resume"
            )


def configured(asked: Config, said: Mapping[str, Any], source: ResumeSource) -> Config:
    """The configuration of the run that is gone on with. `said`: what the command line says, by key, in `asked`.

    Raises ValueError for what contradicts the run.
    """
    saved = source.config
    agree(said, saved)
    own = _config(saved, source.folder)
    own = replace(own, output=source.output or own.output, resume=asked.resume)
    own = replace(own, report=asked.report, validate=asked.validate, force=asked.force)
    own = replace(own, logger=asked.logger, dashboard=asked.dashboard)
    if "output" in said:
        own = replace(own, output=asked.output)
    if "data.dir" in said:
        own = replace(own, data=replace(own.data, dir=asked.data.dir))
    if "cluster.deadline_s" in said:
        own = replace(own, cluster=replace(own.cluster, deadline_s=asked.cluster.deadline_s))
    new = {key.partition(".")[2]: value for key, value in said.items() if key.startswith("checkpoint.")}
    return replace(own, checkpoint=replace(own.checkpoint, **new))


def check(plan: RunPlan, source: ResumeSource) -> RunPlan:
    """`plan` if it is of the run that is gone on with. Raises ValueError."""
    if plan.spec.run_id != source.config.get("run_id"):
        raise ValueError(
            f"{source.folder}: its configuration means another run today ({plan.spec.run_id}); begin that one anew, or go "
            "on with the version that this one was begun with"
        )
    return plan


def _was(saved: dict[str, Any], key: str) -> Any:
    """What the run has for a key of the command line; None if nothing."""
    if key == "mode":
        return _mode(saved)
    if key == "model.depth":
        return saved.get("depth")
    value: Any = saved
    for name in ("policy.name" if key == "policy" else key).split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _mode(saved: dict[str, Any]) -> str:
    policy = saved.get("policy") or {}
    return mode_name(str(saved.get("engine")), str(policy.get("name")), str(saved.get("backend")))


def _config(saved: dict[str, Any], folder: Path) -> Config:
    """The configuration in a run folder, typed."""
    try:
        return Config(
            model=ModelConfig(
                msgspec.convert(saved["model"], str), msgspec.convert(saved.get("depth"), int | None, strict=True)
            ),
            engine=Choice(msgspec.convert(saved["engine"], str)),
            policy=_policy(saved["policy"]),
            backend=Choice(msgspec.convert(saved["backend"] or "nccl", str)),
            averaging=_typed(saved["averaging"] or {}, Averaging),
            world_size=msgspec.convert(saved["world_size"], int),
            seed=msgspec.convert(saved["seed"], int),
            recipe=msgspec.convert(saved["recipe"], str),
            train=_typed(saved["train"], TrainConfig),
            data=_typed(saved["data"], DataConfig),
            loader=_typed(saved.get("loader", {}), Loading),
            cluster=_typed(saved["cluster"], ClusterConfig),
            checkpoint=_typed(saved["checkpoint"], Checkpointing),
            profile=_typed(saved.get("profile", {}), ProfileConfig),
        )
    except (KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise ValueError(
            f"{folder / CONFIG}: not the configuration of a run ({type(error).__name__}: {error})"
        ) from error


def configured_again(saved: dict[str, Any], folder: Path) -> Config:
    """The configuration of a run, to train it once more from the start. Raises ValueError for what is none."""
    return _config(saved, folder)


def _policy(said: Any) -> dict[str, Any]:
    """As in a configuration; a run on one rank has none."""
    policy = {"name": "cadence"} if said is None else msgspec.convert(said, dict[str, Any])
    return policy | {"name": msgspec.convert(policy["name"], str)}


def _typed(said: Any, kind: type[Any]) -> Any:
    checked = msgspec.convert(said, kind, strict=True)
    return kind(**{name: getattr(checked, name) for name in said})


def earlier(source: ResumeSource, at: float) -> list[str]:
    """The records of the run that its checkpoint knows of, as lines, moved in time to end at `at`; and that it goes on then.

    Raises ValueError if they do not have the checkpoint.
    """
    index, books = source.checkpoint.manifest.index, source.checkpoint.books
    records = _records(source.folder / EVENTS)
    # Not the record of its publication, which a process killed right after that did not come to write.
    saved = {record.rank: when for when, record in records if isinstance(record, Saved) and record.index == index}
    cut = max(saved.values(), default=0.0)
    if not saved.keys() >= set(source.checkpoint.manifest.members):
        raise ValueError(f"{source.folder / EVENTS}: does not tell of checkpoint {index}; begin the run anew")
    limits = _limits(records, index, books)
    try:
        counts = _Counting(books, limits)
        known = [(when, record) for when, record in records if when <= cut and counts(record)]
    except AssertionError as error:  # spans that cannot be
        raise ValueError(f"{source.folder / EVENTS}: not the records of a run ({error}); begin the run anew") from error
    lines = []
    for when, record in known:
        body = encode(record, when) if not hasattr(record, "at") else encode(record)
        moved = msgspec.json.decode(body) | {"at": when - cut + at}
        lines.append(msgspec.json.encode(moved).decode())
    resumed = Resumed(at, index, books.epochs, books.samples, str(source.folder))
    return [*lines, encode(resumed).decode()]


def _records(path: Path) -> list[tuple[float, Any]]:
    """(time, record) of every whole line."""
    try:
        return [(float(msgspec.json.decode(line)["at"]), decode(line)) for line in regular.whole_lines(path)]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; begin the run anew") from error
    except (ProtocolError, msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not the records of a run ({error}); begin the run anew") from error


def _limits(records: Sequence[tuple[float, Any]], index: int, books: CoordinatorCheckpoint) -> dict[int, float]:
    """Rank -> until when what it trained is in the checkpoint: it laid down a snapshot for its average, or saved it."""
    limits: dict[int, float] = {}
    last: dict[int, float] = {}
    for _, record in records:
        if isinstance(record, Snapshot) and record.round == books.rounds - 1:
            limits[record.rank] = record.at
        elif isinstance(record, Saved) and record.index == index:
            limits.setdefault(record.rank, record.at)
        elif isinstance(record, Snapshot | Averaged) and record.round < books.rounds:
            last[record.rank] = record.at
    return last | limits


class _Counting:
    """Whether a record is of what the checkpoint's model knows of."""

    def __init__(self, books: CoordinatorCheckpoint, limits: Mapping[int, float]) -> None:
        self._books, self._limits = books, limits
        self._held = {ledger.epoch: ledger.merged for ledger in books.ledgers}
        """Epoch that was not over -> what of it is in the model, ascending."""

    def __call__(self, record: Any) -> bool:
        match record:
            case Progress():
                return record.at <= self._limits.get(record.rank, record.at)
            case Merged() if record.epoch not in self._held:
                return record.epoch < self._books.begun
            case Merged():
                held = self._held[record.epoch]
                return all(_holds(held, span) for span in union((), record.spans))
            case Evaluate() | Evaluated():
                return record.epoch < self._books.begun and record.epoch not in self._held
        return bool(getattr(record, "round", -1) < self._books.rounds)


def _holds(held: Spans, span: Span) -> bool:
    """Whether `span` lies in one of the spans, which ascend."""
    place = bisect_right(held, span[0], key=lambda known: known[0]) - 1
    return place >= 0 and span[1] <= held[place][1]
