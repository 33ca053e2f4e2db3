"""`tensorboard`: an event file in `tensorboard/` in the run's folder; `tensorboard --logdir runs` finds all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.text import metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from bench.loggers.recorded import Recorded

FOLDER = "tensorboard"


def write(run: Recorded, output: Path) -> Path:
    """Write a run."""
    folder = run.folder / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    writer = EventFileWriter(str(folder))
    try:
        for scalar in run.scalars:
            summary = Summary(value=[Summary.Value(tag=scalar.name, simple_value=scalar.value)])
            writer.add_event(Event(wall_time=run.began + scalar.seconds, step=scalar.step, summary=summary))
        writer.add_event(Event(wall_time=run.began, step=0, summary=_table(run.params)))
    finally:
        writer.close()
    return folder


def _table(params: dict[str, str]) -> Summary:
    """The configuration as a page of text."""
    rows = "".join(f"| {key} | {value} |\n" for key, value in params.items())
    value = Summary.Value(tag="configuration", metadata=metadata.create_summary_metadata("configuration", ""))
    text = TensorProto(dtype="DT_STRING", string_val=[f"| key | value |\n|---|---|\n{rows}".encode()])
    text.tensor_shape.dim.add(size=1)
    value.tensor.CopyFrom(text)
    return Summary(value=[value])
