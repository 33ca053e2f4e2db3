"""Replays a recorded run in the core. The coordinator, fed with the recorded events in their order, must return
exactly the recorded commands, reports and ledger lines; the epochs of the result must follow from the same records.
Reads the run folder; starts no process.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bench.results.analysis.stream import sort
from bench.results.analysis.training import Finite, epoch_row
from bench.results.recompute import differences
from bench.results.runfolder import CONFIG, EVENTS, Run, located, read_object, read_records
from bench.runner.saved_config import config_of
from ddp import regular_files
from ddp.backends import world_of
from ddp.core.coordinator import Coordinator
from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Publish, Shorten
from ddp.core.messages.events import GuardVerdict, Memory, Merged, Resumed, RoundClosed, Saved, Slice
from ddp.core.messages.run_bounds import Launched, RunEnd, RunHeader
from ddp.engine.modes import engine_of
from ddp.process.codec import EVENTS as KINDS
from ddp.process.codec import Record, body, decode
from ddp.settings import make_policy, restarts

SAID = (RoundClosed, Merged, GuardVerdict)
"""Events that the coordinator emits."""
UNHEARD = (Slice, Memory, Launched, Resumed, RunHeader, RunEnd)
"""Events that the coordinator never receives."""


class Unfit(ValueError):
    """Raised for a run that cannot be replayed, with the reason in one line."""


def deviation(run: Run) -> tuple[int, str | None]:
    """Return the number of records that the coordinator reproduced, and a line on the first one that differs. Raises
    Unfit."""
    m = run.metrics
    if m.world_size == 1 or engine_of(m.engine).one_process:
        raise Unfit(f"mode {m.mode} with {m.world_size} ranks has no coordinator, so nothing was decided")
    if m.resumed is not None:
        raise Unfit("it went on from a checkpoint; replay the run that it began as")
    records = _in_order(run.path / EVENTS)
    coordinator = _coordinator(run, records[0][0])
    given: list[Record] = []
    checked = 0
    for number, (_, record, fields) in enumerate(records):
        if isinstance(record, Saved) and record.error and given and isinstance(given[0], Publish):
            given.pop(0)  # the runtime could not obey, and said so in its place
            continue
        if type(record).__name__ in KINDS and not isinstance(record, SAID):
            if given:
                return checked, _unlike(number, given[0], record)
            try:
                coordinator, outputs = coordinator.update(record)  # type: ignore[arg-type]
            except (ProtocolError, AssertionError) as error:
                return checked, f"record {number}: the core refuses {_shown(record)}: {error}"
            given = list(outputs)
        elif not given or not _equal(given[0], record, fields):
            return checked, _unlike(number, given[0] if given else None, record)
        else:
            given.pop(0)
            checked += 1
    if m.status != "ok":
        return checked, None
    if given:
        return checked, f"at the end: {_shown(given[0])} is not recorded"
    if not coordinator.over:
        raise Unfit(f"its {len(records)} records end before the run does; {EVENTS} was cut off")
    return checked, None


def mislearnt(run: Run) -> str | None:
    """Return a line on the first loss, metric or count of an epoch in the result that does not follow from the
    records."""
    if run.metrics.source == "predicted":  # nobody learnt anything
        return None
    stream = sort([*read_records(run.path)], 0.0)
    rows = [epoch_row(figures, run.metrics.world_size, Finite()).model_dump() for figures in stream.epochs]
    recorded = [row.model_dump() for row in run.metrics.epochs]
    for field, here, recomputed in differences(recorded, rows, "epochs"):
        return f"{field} is {here}, and {recomputed} by the records"
    return None


def _equal(given: Any, recorded: Any, fields: dict[str, Any]) -> bool:
    """Return whether the core's output equals the record in the record's `fields`, up to the rounding of sums; earlier
    versions recorded fewer fields."""
    own = _limited(msgspec.to_builtins(given), fields)
    # As JSON, as NaN equals nothing.
    ours, theirs = msgspec.json.encode(own), msgspec.json.encode(_limited(fields, own))
    alike = ours == theirs or not any(differences(msgspec.json.decode(ours), msgspec.json.decode(theirs)))
    return type(given) is type(recorded) and alike


def _limited(value: Any, other: Any) -> Any:
    """Return `value` without the fields that `other` lacks, at any depth."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: _limited(entry, other[key]) for key, entry in sorted(value.items()) if key in other}
    if isinstance(value, list | tuple) and isinstance(other, list | tuple) and len(value) == len(other):
        return [_limited(entry, beside) for entry, beside in zip(value, other, strict=True)]
    return value


def _in_order(path: Path) -> list[tuple[float, Record, dict[str, Any]]]:
    """Return (time, record, its fields) of all records that passed the coordinator, in its order. Raises Unfit if the
    records have no order."""
    records = []
    try:
        lines = list(regular_files.whole_lines(path))
    except OSError as error:
        raise ValueError(located(error)) from None
    for line in lines:
        try:
            record, fields = decode(line), body(line)
            if not isinstance(record, UNHEARD):
                records.append((int(fields["n"]), float(fields["at"]), record, fields))
        except (KeyError, TypeError):
            raise Unfit("its records do not tell in which order they came: it was made by an earlier version") from None
        except (ProtocolError, msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
    if not records:
        raise Unfit("it has no records")
    return [entry[1:] for entry in sorted(records, key=lambda entry: entry[0])]


def _coordinator(run: Run, at: float) -> Coordinator:
    m = run.metrics
    config = config_of(read_object(run.path / CONFIG), run.path)
    settings = {key: value for key, value in config.policy.items() if key != "name"}
    world = world_of(
        config.backend.name,
        m.world_size,
        0,
        m.batch_size,
        m.epochs_planned,
        deadline_s=config.cluster.deadline_s,
        tolerate_loss=config.cluster.tolerate_loss,
        restarts=restarts(config.cluster.restart),
        absent=config.cluster.absent,
        spares=config.cluster.spares,
        checkpoints=config.checkpoint,
    )
    return Coordinator.start(make_policy(config.policy["name"], settings), world, at)


def _unlike(number: int, given: Any, recorded: Any) -> str:
    """Return a line on two records that differ. Raises Unfit for an order that earlier versions did not have."""
    if isinstance(given, Shorten) and not isinstance(recorded, Shorten):
        raise Unfit("an earlier version made no checkpoint before the end inside an epoch; replay it with that version")
    return f"record {number}: the core gives {_shown(given)}, recorded is {_shown(recorded)}"


def _shown(record: Any) -> str:
    if record is None:
        return "nothing"
    return "".join(islice(_words(record), 8))


def _words(record: Any) -> Iterator[str]:
    body = msgspec.to_builtins(record)
    yield type(record).__name__
    for key, value in body.items():
        yield f" {key}={str(value)[:60]}"
