"""Commands that are killed with all that they started once they have a checkpoint."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from bench.results import lease
from bench.results.runfolder import read_records
from ddp.core.messages.events import Merged
from tests.warm import PICTURES, Warm, wait_for

QUIET = ("report=false", "validate=false")

SMALL = ("model=mlp", "data.name=digits", "train.batch_size=64", "checkpoint.spacing_s=0", *QUIET)


def killed(warm: Warm, folder: Path, *words: str, checkpoint: int) -> Path:
    """A run killed with all its processes some time after that checkpoint; its hidden folder."""
    process = warm.start(folder, "-m", "bench", *words, env={PICTURES: "none"})
    try:
        found = wait_for(lambda: written(folder, checkpoint), process)
    finally:
        process.kill_all()
    assert process.returncode == -signal.SIGKILL, "the run came to its end before it was killed"
    assert found
    return found[0].parents[1]


def written(folder: Path, checkpoint: int) -> list[Path]:
    """The places of that checkpoint or later ones. Folders that come and go meanwhile are not looked into."""
    places = folder.glob("*/*/*/.tmp-*/checkpoints/[0-9]*")
    return [place for place in places if int(place.name) >= checkpoint]


def place(hidden: Path) -> Path:
    """Where the folder of a run would lie."""
    own = lease.in_making(hidden)
    assert own
    return hidden.with_name(own.name)


@pytest.fixture(scope="module")
def leftover(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hidden folder of a solo run that was killed when it had two checkpoints."""
    folder = tmp_path_factory.mktemp("left")
    return killed(warm, folder, *SMALL, "mode=solo", "train.epochs=200", checkpoint=3)


@pytest.fixture
def left(leftover: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "runs" / "mlp" / "solo" / leftover.name
    shutil.copytree(leftover, copy)
    return copy


def command(warm: Warm, folder: Path, *words: str) -> tuple[int, str, str]:
    """`python -m bench <words>`: its exit code, output and errors."""
    return warm.start(folder, "-m", "bench", *words, env={PICTURES: "none"}).result()


def in_model(folder: Path) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch is in the model."""
    merged = [record for record in read_records(folder) if isinstance(record, Merged)]
    spans = [(event.epoch, *span) for event in merged for span in event.spans]
    return Counter((epoch, sample) for epoch, start, stop in spans for sample in range(start, stop))
