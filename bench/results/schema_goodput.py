"""Sections of a result on the use of all ranks' time, the measures that others derive from it, and ranks that became
slow."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bench.results.schema_speed import Strict


class RankSeconds(Strict):
    """Where the time of all ranks went, from launch until the last rank had finished. The parts sum to 1.

    Time in which a rank stands still counts as `detecting` from a loss until it is noticed, and as `regrouping` from there
    until the rank trains again. Communication of PyTorch's engines inside a step counts as training.
    """

    kept: float = Field(description="training of new samples that is in the model, fraction")
    repeated: float = Field(
        description="training that is in the model, of samples whose first training was lost, fraction"
    )
    discarded: float = Field(description="training that is not in the model, fraction")
    evaluating: float = Field(description="evaluation, fraction")
    saving: float = Field(description="writing checkpoints, fraction")
    communicating: float = Field(description="on the wire and copying snapshots, fraction")
    waiting: float = Field(description="waiting for other ranks or for orders, and after the rank's own end, fraction")
    detecting: float = Field(description="a rank is lost, and nobody has noticed, fraction")
    regrouping: float = Field(description="standing still until all can train together again, fraction")
    restoring: float = Field(description="taking state from a peer or a checkpoint, or giving it, fraction")
    starting: float = Field(description="from launch or restart until the rank is ready or trains, fraction")
    absent: float = Field(description="no process, and none is being started, fraction")
    other: float = Field(description="bookkeeping between measured slices, fraction")


class Goodput(Strict):
    """How the time of all ranks was used, and measures of that by their names in the field."""

    rank_seconds: float = Field(
        description="what is divided: ranks x seconds from launch to the last rank's end, seconds"
    )
    parts: RankSeconds
    ettr: float = Field(
        description="effective training time ratio (Meta): 1 less discarded, saving, detecting, regrouping, restoring, "
        "starting and absent, fraction"
    )
    goodput: float = Field(
        description="training that is kept / time in which there was a machine: (kept + repeated) / (1 - absent)"
    )
    ett: float = Field(
        description="effective training time (ETT%): like `ettr`, but training that is lost counts where it is repeated, "
        "not where it was first done: ettr + discarded - repeated, fraction"
    )
    ucf: float = Field(description="useful capacity: `ettr` less communicating, fraction")


class SlowRankRow(Strict):
    """A rank that took longer for its samples than before, in two windows in a row."""

    rank: int = Field(description="number of the rank")
    cause: Literal["compute", "input", "host", "link"] = Field(
        description="its own work on a batch; late batches; the machine, which other programs or ranks used; its link"
    )
    factor: float = Field(description="so many times as long as before")
    seconds: float = Field(description="since launch, when its first slow window began, seconds")
    named_s: float = Field(description="since launch, when it was named, seconds")
    windows: int = Field(description="windows from the first slow one until it was named")
    healed_s: float | None = Field(
        default=None, description="since launch, when it was as fast as before again, seconds; null: not in this run"
    )
