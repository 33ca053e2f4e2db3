"""`tensorboard`: an event file in `tensorboard/` in the run's folder; `tensorboard --logdir runs` finds all of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.text import metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from bench.loggers.base import Live
from bench.loggers.recorded import Begun, Recorded, Scalar

FOLDER = "tensorboard"


class Events:
    """A run's event file, in place of what there was."""

    def __init__(self, run: Begun) -> None:
        self.folder, self._began = run.folder / FOLDER, run.began
        shutil.rmtree(self.folder, ignore_errors=True)
        self._writer = EventFileWriter(str(self.folder))
        self._writer.add_event(Event(wall_time=run.began, step=0, summary=_table(run.params)))

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Append, and have it seen."""
        for scalar in scalars:
            summary = Summary(value=[Summary.Value(tag=scalar.name, simple_value=scalar.value)])
            self._writer.add_event(Event(wall_time=self._began + scalar.seconds, step=scalar.step, summary=summary))
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        self._writer.close()


def begin(run: Begun, output: Path) -> Live:
    """Begin the file in the folder in which the run is made; it comes into place with that."""
    return Events(run)


def write(run: Recorded, output: Path, live: Live | None = None) -> Path:
    """Write a run. What was shown of it `live` lies there already, and is written anew: its file knows its folder by a name
    that it does not have any more."""
    events = Events(run)
    try:
        events.add(run.scalars)
    finally:
        events.end()
    return events.folder


def _table(params: dict[str, str]) -> Summary:
    """Return the configuration as a page of text."""
    rows = "".join(f"| {key} | {value} |\n" for key, value in params.items())
    value = Summary.Value(tag="configuration", metadata=metadata.create_summary_metadata("configuration", ""))
    text = TensorProto(dtype="DT_STRING", string_val=[f"| key | value |\n|---|---|\n{rows}".encode()])
    text.tensor_shape.dim.add(size=1)
    value.tensor.CopyFrom(text)
    return Summary(value=[value])
