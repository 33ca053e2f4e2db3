"""Whether the files of a run folder agree with each other, so that checks may trust them.

Other modules read each file against its own schema. This one compares them: it finds an `events.jsonl` that lacks
lines, or a `metrics.json` that was edited. It says what is wrong, and judges no training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypedDict

import msgspec

from bench.base.number_format import plural
from bench.base.usage import tame
from bench.results.analysis.volume import several_types
from bench.results.chain import seal_of
from bench.results.recompute import ROUNDING, differences, digest
from bench.results.runfolder import CONFIG, EVENTS, METRICS, Run, check_keys, read_object, tame_all, there
from bench.results.schema import READABLE, SCHEMA_VERSION, SINCE, Metrics, RecordSeal
from bench.results.schema_speed import IDLE_WHILE_PRESENT
from bench.results.training_settings import LARGEST, micro_batches
from bench.validate.records.reading import Reading, as_planned, lost_nobody, reading, unsealed
from bench.validate.records.run_records import Records
from bench.validate.sketches.resumption import most_ranks
from ddp.sketches import decode

SEALED = 3
"""First version of results with the seal of their records."""
CLOCK = 5
"""First version of results whose training clock counts only the ranks that are present."""
PRESENCE = 6
"""First version of results in which a rank that is absent does not count as present."""
OF_PRESENCE = ("breakdown", "time_s.rank_wall", "time_s.checkpoint", "throughput.efficiency")
"""Fields in which that makes a difference."""
JOINED = 8
"""First version of results in which only ranks that joined are `late`, and a warning names the others. The first, too, in
which faults and goodput tell of what came before all ranks began again."""
OF_LOSSES = ("faults", "goodput", "warnings")
"""Fields in which that makes a difference."""
OF_IDLE = ("timeline.", "throughput.steady", "goodput", "faults")
"""Fields in which it makes a difference that idle time and steady state leave out the absence of ranks, that goodput counts
it in runs that were cut short, too, and that collectives which end for a rank that joins are no faults."""
OF_CLOCK = ("time_s", "throughput", "epochs", "target", "goodput", "work", "elche")
"""Sections of a result that depend on the training clock."""
ROOM = 2
"""Most samples that may have been granted per sample that a finished run reports as trained: beyond, reports are
missing."""


class _Averaging(TypedDict, total=False):
    gamma: float
    elastic: float | None
    outer: str
    wire: str


class _Settings(TypedDict, total=False):
    """The part of `config.json` that is checked; earlier versions may have had less."""

    train: dict[str, Any]
    training: dict[str, Any]
    data: dict[str, Any]
    loader: dict[str, Any]
    cluster: dict[str, Any]
    profile: dict[str, Any]
    policy: dict[str, Any] | None
    averaging: _Averaging | None
    depth: int | None


def consistent(run: Run) -> None:
    """Raise ValueError if configuration or result are impossible, contradict each other, or were changed since they
    were written. The message is one line that names the file."""
    _check_alone(run)
    if run.metrics.record is not None:
        _check_digest(run, run.metrics.record, read_object(run.path / METRICS))


def intact(run: Run) -> None:
    """Raise ValueError as `consistent` does, or if the records are not those that the result was computed from."""
    consistent(run)
    if run.metrics.record is not None and there(run.path / EVENTS):
        _check_records(run, run.metrics.record)


def legible(run: Run) -> None:
    """Raise ValueError if the checks cannot rely on the folder: `consistent`, readable records, and a result that
    follows from them."""
    for path in filter(there, (run.path / METRICS, run.path / CONFIG)):
        check_keys(path)
    seal = run.metrics.record
    body = read_object(run.path / METRICS) if seal is not None else {}
    as_written = seal is None or seal.result == digest(body)
    try:
        # If the result was edited, its seal would blame the records, so they are read without it.
        known = reading(run) if as_written else unsealed(run)
    except OSError as error:
        raise ValueError(f"{run.path / EVENTS}: {error.strerror}") from None
    if known is not None:
        _check_result(run, known, body, as_written)
    _check_alone(run)
    if known is not None and as_planned(run.metrics) and (wrong := _events(run.metrics, known.records)):
        raise ValueError(f"{run.path / EVENTS}: {wrong}")
    if seal is not None and not as_written:
        _check_digest(run, seal, body)


def _check_alone(run: Run) -> None:
    try:
        msgspec.convert(run.config, _Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"{run.path / CONFIG}: not the configuration of a run: {error}") from None
    if wrong := _result(run.metrics) or _unproved(run):
        raise ValueError(f"{run.path / METRICS}: {wrong}")


def _unproved(run: Run) -> str:
    """Say that a result lacks its seal; empty: it has one, or is from before seals."""
    m = run.metrics
    if m.record is not None or m.schema_version < SEALED or not there(run.path / METRICS):
        return ""
    return f"record is missing, though every result of version {m.schema_version} has one"


def _check_result(run: Run, known: Reading, body: dict[str, Any], as_written: bool) -> None:
    """Raise ValueError for the first field of configuration or result (`body`) that does not follow from the records."""
    if known.header is None or known.result is None:
        return
    if run.metrics.record is None:
        raise ValueError(f"{run.path / METRICS}: record is missing, though {EVENTS} is sealed")
    spec = known.header.spec
    config = {"run_id": spec["run_id"], "config_hash": spec["config_hash"], **spec["config"]}
    for field, recorded, recomputed in differences(run.config, tame_all(config), slack=0.0):
        raise ValueError(f"{run.path / CONFIG}: {field} is {_shown(recorded)}, but {EVENTS} gives {_shown(recomputed)}")
    written = {key: value for key, value in body.items() if key != "record"}
    anew = known.result.model_dump(mode="json", exclude={"record"})
    if as_written and written == anew:
        return
    for field, recorded, recomputed in differences(written, anew, slack=ROUNDING if as_written else 0.0):
        if as_written and _is_earlier(field, recorded, recomputed, run):
            continue
        raise ValueError(
            f"{run.path / METRICS}: {field} is {_shown(recorded)}, but {EVENTS} gives {_shown(recomputed)}"
        )


def _is_earlier(field: str, recorded: object, recomputed: object, run: Run) -> bool:
    """Return whether a field differs only because the result's version did not have it, or counted otherwise."""
    version = run.metrics.schema_version
    if field == "schema_version":
        return version in READABLE and version < SCHEMA_VERSION
    if version < CLOCK and _counted_otherwise(field, run):
        return True
    if version < PRESENCE and field.startswith(OF_PRESENCE):
        return recorded is msgspec.UNSET or not lost_nobody(run.metrics)
    present = run.metrics.status == "ok" and lost_nobody(run.metrics)
    if version < IDLE_WHILE_PRESENT and field.startswith(OF_IDLE) and not present:
        return True
    if version < JOINED and field.startswith(OF_LOSSES) and (not present or run.metrics.resumed is not None):
        return True
    if field.startswith("timeline.volume.") and several_types(run.metrics):  # once taken for one type
        return True
    if version < JOINED and run.metrics.late and _never_came(field, recorded, recomputed):
        return True
    if recorded is not msgspec.UNSET:
        return False
    known = Metrics.model_fields.get(field)
    return recomputed is None or version < SINCE.get(field, 0) or (known is not None and recomputed == known.default)


def _never_came(field: str, recorded: object, recomputed: object) -> bool:
    """Return whether a field differs as a rank that never came was late, and no warning named it."""
    if isinstance(recorded, list) and isinstance(recomputed, list):
        return (field == "late" and set(recomputed) < set(recorded)) or (
            field == "warnings" and recorded == recomputed[1:]
        )
    return field == "absent" and recorded is msgspec.UNSET


def _counted_otherwise(field: str, run: Run) -> bool:
    """Return whether versions before `CLOCK` computed a field otherwise: by the training clock if ranks were lost or
    late, steps of micro-batches, bytes per step of resumed runs, and `work.peak_share`."""
    m, place = run.metrics, field.partition(".")[0].partition("[")[0]
    return (
        (bool(m.faults or m.late) and place in OF_CLOCK)
        or (micro_batches(run.config) > 1 and field.startswith(("timeline.steps", "timeline.straggler_index")))
        or (m.resumed is not None and field == "timeline.volume.per_step")
        or field == "work.peak_share"
    )


def _check_digest(run: Run, seal: RecordSeal, body: dict[str, Any]) -> None:
    """Raise ValueError if the result `body` has another digest than its seal says."""
    if seal.result == digest(body):
        return
    if there(run.path / EVENTS):
        _check_records(run, seal)
    raise ValueError(f"{run.path / METRICS}: record.result is not the digest of its content: one of them was changed")


def _check_records(run: Run, seal: RecordSeal) -> None:
    """Raise ValueError if the records have another digest than the seal says."""
    named = seal.model_dump(exclude={"result"})
    for field, recorded, actual in differences(named, seal_of(run.path / EVENTS)._asdict(), "record"):
        raise ValueError(f"{run.path / METRICS}: {field} is {recorded}, but {EVENTS} has {actual}")


def _shown(value: object) -> str:
    return "missing" if value is msgspec.UNSET else tame(str(value)[:80])


def sound(runs: Sequence[Run], test: Callable[[Run], None] = consistent) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Return the runs that pass the test, and (run, reason) for each that does not."""
    kept, problems = [], []
    for run in runs:
        try:
            test(run)
            kept.append(run)
        except ValueError as error:
            problems.append((run, str(error)))
    return kept, problems


def _result(m: Metrics) -> str:
    """Say what is impossible in a result, without other files; empty: nothing."""
    for name, values in _by_rank(m):
        size = most_ranks(m) if name.startswith("ledger.") else m.world_size
        if len(values) != size:
            return f"{name}: {plural(len(values), 'rank')}, but world_size is {size}"
    if min(m.epochs_planned, m.batch_size) < 1 or m.lr * m.lr_scale <= 0:
        return f"{m.epochs_planned} epochs of batches of {m.batch_size} at lr {m.lr:g} x {m.lr_scale:g} cannot train"
    if beyond := _beyond(m.model_dump()):
        return f"{beyond} is beyond {LARGEST:g}, which cannot be a measurement"
    speed = m.throughput.samples_per_s
    if speed is not None and speed < 0:
        return f"throughput.samples_per_s is {speed:g}, which cannot be a speed"
    return ""


def _by_rank(m: Metrics) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield (name, values) of each field that must have a value for each rank."""
    if m.ledger is not None:
        yield from ((f"ledger.epochs[{n}].by_rank", row.by_rank) for n, row in enumerate(m.ledger.epochs))
    if m.breakdown:
        yield "breakdown", m.breakdown
    if m.elche is not None:
        yield "elche.counts", m.elche.counts
        yield from ((f"elche.plans[{n}].counts", plan.counts) for n, plan in enumerate(m.elche.plans))
        for n, window in enumerate(m.elche.windows):
            yield f"elche.windows[{n}].steps", window.steps
            yield f"elche.windows[{n}].ms_per_batch", window.ms_per_batch


def _beyond(value: dict[str, Any] | list[Any], name: str = "") -> str:
    """Return the name of the first number in a nested value that is beyond `LARGEST`; empty: none is."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        kind = type(inner)
        if kind is float or kind is int:
            if abs(inner) <= LARGEST:
                continue
        elif kind is not dict and kind is not list:
            continue
        place = f"{name}[{key}]" if isinstance(value, list) else f"{name}.{key}" if name else str(key)
        if wrong := (_beyond(inner, place) if kind is dict or kind is list else place):
            return wrong
    return ""


def _events(m: Metrics, known: Records) -> str:
    """Say what is wrong with records, by themselves or against the result; empty: nothing."""
    ranks = {event.rank for event in known.ready}
    if ranks != set(range(most_ranks(m))):
        who = f"ranks {_listed(ranks)}" if ranks else "no rank"
        return f"records {who} as ready, but world_size is {m.world_size}: lines are missing, or were changed"
    by_rank = (known.progress, known.snapshots, known.averaged, known.evaluated)
    strange = {event.rank for events in by_rank for event in events} - ranks
    if strange:
        return f"has records of ranks {_listed(strange)}, but world_size is {m.world_size}"
    samples, trained = known.ready[0].samples, sum(event.samples for event in known.progress)
    if known.progress and not 0 < samples * m.epochs_planned <= ROOM * trained:
        planned = f"{m.epochs_planned} epochs of {samples}"
        return f"{trained} samples are reported as trained, but {planned} are planned: lines are missing"
    return _sketches(known)


def _sketches(known: Records) -> str:
    """Say which sketch cannot be decoded, or has another number of groups than rank 0 named; empty: none."""
    for text in filter(None, known.sketches()):
        try:
            rows = len(decode(text).sizes)
        except ValueError as error:
            return str(error)
        if rows != len(known.groups):
            return f"sketches have {rows} groups, but {len(known.groups)} are named"
    return ""


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)[:8])) + (", ..." if len(numbers) > 8 else "")
