"""Writes a played cell as a run folder, which report, timeline and dashboard can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bench.base import environment
from bench.base.writing import write_bytes, write_text
from bench.predict.calibration import Calibration
from bench.predict.play import PlayedCell
from bench.predict.predicted_cell import PredictedCell
from bench.predict.spec import predicted_spec
from bench.results.chain import Seal, chained
from bench.results.journal import Journal
from bench.results.recompute import plain, result, sealed
from bench.results.runfolder import CONFIG, EVENTS, METRICS
from bench.results.writer import RunWriter
from bench.timeline import write_timeline
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.process.codec import Record, encode, stamp


def write_run(cell: PredictedCell, calibration: Calibration, played: PlayedCell, output: Path) -> Path:
    """Write the folder of a cell below `output`, and return it. Raises OSError, and ValueError if it cannot be made."""
    spec = replace(predicted_spec(cell, calibration), output=str(output))
    writer = RunWriter(*spec.key)
    try:
        config = {"run_id": spec.run_id, "config_hash": spec.config_hash, **spec.config}
        write_text(writer.path / CONFIG, json.dumps(config, indent=1) + "\n")
        header = RunHeader(0.0, 0.0, plain(spec), environment.describe(), environment.source())
        last = RunEnd(played.end, played.status, None, (), 0)
        seal, records = _journal(writer.path / EVENTS, header, played, last)
        write_timeline(writer.path, records[1:-1], spec, 0.0)
        metrics = sealed(result(records), seal)
        write_text(writer.path / METRICS, metrics.model_dump_json(indent=1) + "\n")
        return writer.commit(metrics.status)
    except BaseException:
        writer.discard()
        raise


def _journal(path: Path, header: RunHeader, played: PlayedCell, last: RunEnd) -> tuple[Seal, list[Record]]:
    """Write the records as a run does: numbered events and commands, with the ranks' slices among them in order of
    time."""
    lines = [
        b'{"n":%d,%b' % (number, encode(record, at)[1:])
        for number, (at, record) in enumerate([(0.0, header), *played.records])
    ]
    woven = sorted([*lines, *map(encode, played.slices)], key=stamp)
    write_bytes(path, b"".join(line + b"\n" for line in chained(woven)))
    with Journal(path) as journal:
        records = journal.merge()
        seal = journal.end(last)
    return seal, [*records, last]
