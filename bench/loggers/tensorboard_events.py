"""`tensorboard`: an event file in `tensorboard/` in the run's folder; `tensorboard --logdir runs` finds all of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from bench.base.tables import markdown
from bench.loggers.base import Live
from bench.loggers.recorded import Begun, Recorded, Scalar

FOLDER = "tensorboard"
STATUS = {"ok": Status.STATUS_SUCCESS}


class Events:
    """A run's event file, in place of what there was."""

    def __init__(self, run: Begun) -> None:
        self.folder, self._began = run.folder / FOLDER, run.began
        shutil.rmtree(self.folder, ignore_errors=True)
        self._writer = EventFileWriter(str(self.folder))
        self._writer.add_event(Event(wall_time=run.began, step=0, summary=_table(run.params)))

    def describe(self, run: Recorded) -> None:
        """Append what the run was made with, for TensorBoard's table of runs, and its pictures."""
        kept = run.metrics.config_hash, run.metrics.status
        start = SessionStartInfo(group_name=kept[0], start_time_secs=run.began)
        for name, value in run.settings.items():
            if isinstance(value, float):
                start.hparams[name].number_value = value
            else:
                start.hparams[name].string_value = value
        ended = run.began + run.seconds
        end = SessionEndInfo(status=STATUS.get(kept[1], Status.STATUS_FAILURE), end_time_secs=ended)
        for tag, data in (
            (hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
            (hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
        ):
            shown = Summary.Value(tag=tag, metadata=hparams.create_summary_metadata(data), tensor=hparams.NULL_TENSOR)
            self._writer.add_event(Event(wall_time=run.began, step=0, summary=Summary(value=[shown])))
        for file in run.images:
            with Image.open(file) as opened:
                width, height = opened.size
            picture = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=file.read_bytes())
            drawn = Summary(value=[Summary.Value(tag=file.stem, image=picture)])
            self._writer.add_event(Event(wall_time=ended, step=0, summary=drawn))
        self._writer.flush()

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
        events.describe(run)
    finally:
        events.end()
    return events.folder


def _table(params: dict[str, str]) -> Summary:
    """Return the configuration as a page of text."""
    page = "\n".join([*markdown(("key", "value"), params.items()), ""])
    value = Summary.Value(tag="configuration", metadata=metadata.create_summary_metadata("configuration", ""))
    text = TensorProto(dtype="DT_STRING", string_val=[page.encode()])
    text.tensor_shape.dim.add(size=1)
    value.tensor.CopyFrom(text)
    return Summary(value=[value])
