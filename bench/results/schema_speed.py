"""Sections of a result on how fast a run was and where its time went. `bench.results.schema` combines all sections."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """A model that refuses unknown fields, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Time(Strict):
    """Where the wall time of the run went; total = startup + train + eval + shutdown."""

    total: float = Field(description="from launch to end of the run, seconds")
    startup: float = Field(description="from launch until the last rank was ready, seconds")
    train: float = Field(
        description="from the last rank ready to the last rank finished, less `eval`: the stopped clock, seconds"
    )
    eval: float = Field(description="evaluation, mean over ranks, seconds")
    checkpoint: float = Field(description="writing checkpoints, mean over ranks, seconds; part of `train`")
    shutdown: float = Field(description="from the last rank finished to the end, seconds")
    rank_wall: list[float] = Field(
        description="by rank, from ready to finished (or its last record, if cut short; of a lost rank, its last measured "
        "slice; of a rank that joined later, from when the others were ready), which `breakdown` divides, seconds"
    )


class Steady(Strict):
    """Training speed at steady state: the controller has settled, the end is not near, evaluation and checkpoints cut out.

    The stretch begins when the first epoch and the fifth round have ended; without rounds, when the first epoch has. After
    a loss or join it begins with the fifth round, or with each rank's first report, after that. It ends with the last round
    before the first rank has trained its last sample. Each rank is measured between its own reports nearest to these times.
    """

    seconds: float = Field(description="length of the stretch, mean over ranks, seconds")
    samples_per_s: float = Field(description="sum over ranks of samples / seconds of its stretch, samples per second")
    bound: float = Field(
        description="sum over ranks of samples / busy seconds, in the same stretch: what the ranks would do alone, samples "
        "per second. Busy is data, compute and emulated slowness, and gaps between these (or evaluations) with nothing in "
        "between: bookkeeping of the loop, which a rank alone would have, too. Time around a collective, a snapshot or a "
        "wait is not busy"
    )
    efficiency: float = Field(description="samples_per_s / bound, fraction")
    waiting_or_communicating: list[float | None] = Field(
        description="by rank, fraction of its stretch spent waiting for others or for orders, on the wire, and copying "
        "snapshots; null: the rank was lost, or never came"
    )


class Throughput(Strict):
    """Training speed over `time_s.train`. Samples of a lost rank that others trained again count once."""

    samples_per_s: float | None = Field(description="samples trained by all ranks / training time, samples per second")
    per_rank: list[float] = Field(description="the same by rank, samples per second; sums to `samples_per_s`")
    efficiency: float | None = Field(
        description="samples_per_s / sum over ranks of (samples / seconds busy in data and compute): fraction of the "
        "speed that the same ranks would have in this run if they never waited nor communicated; a rank enters the sum with "
        "the part of the training time in which it was not absent; null: nobody trained, or collectives hide in compute"
    )
    steady: Steady | None = Field(
        default=None,
        description="the same at steady state; null: the run is too short to have one, or collectives hide in compute",
    )

    @property
    def steady_efficiency(self) -> float | None:
        """Efficiency at steady state; None if there is none."""
        return None if self.steady is None else self.steady.efficiency


class RankTime(Strict):
    """How one rank spent its wall time (`time_s.rank_wall`). The fractions sum to 1."""

    compute: float = Field(description="forward, backward, optimizer and the emulated slowness, fraction of wall time")
    data: float = Field(description="making batches, fraction of wall time")
    comm: float = Field(
        description="on the wire (from the last arrival at a collective to its end) and copying snapshots, fraction of "
        "wall time"
    )
    wait: float = Field(description="waiting for other ranks at a collective, or for orders, fraction of wall time")
    eval: float = Field(description="evaluation, fraction of wall time")
    checkpoint: float = Field(description="writing checkpoints, fraction of wall time")
    absent: float = Field(
        default=0.0,
        description="the run went on without it: from its loss, or the start if it joined later, until a process for it was "
        "ready to join, fraction of wall time",
    )
    other: float = Field(description="the remainder: bookkeeping between the slices, fraction of wall time")


class SyncTotals(Strict):
    """Synchronization of replicas: rounds of averaging, or collectives inside steps that average gradients."""

    kind: Literal["none", "gradients", "parameters"] = Field(description="what is averaged")
    count: int = Field(description="rounds (parameters) or collectives (gradients)")
    bytes: int = Field(description="payload sent by all ranks in all rounds, bytes")
    ms_p50: float | None = Field(
        description="median cost of one: time on the wire, or of averaging snapshots, milliseconds"
    )
    ms_p95: float | None = Field(description="95th percentile of the same, milliseconds")
    divergence_p50: float | None = Field(
        description="median over rounds and ranks of ||own - average|| / ||average|| before averaging"
    )


class StepTime(Strict):
    """Duration of one rank's steps, from loading the batch to the end of the optimizer, including emulated slowness and
    communication inside the step."""

    count: int = Field(description="steps measured")
    p50_ms: float = Field(description="median, milliseconds")
    p95_ms: float = Field(description="95th percentile, milliseconds")
    p99_ms: float = Field(description="99th percentile, milliseconds")


class Overlap(Strict):
    """How much of the communication of one rank overlaps its training.

    Communication is the rank's own time on the wire and of copying snapshots, the transfer of gradient buckets during a
    backward pass, and the concurrent averaging of snapshots by the coordinator's process. What PyTorch or `zero3` transfer
    during computation is not measured, so it is not included."""

    comm_s: float = Field(description="communication, seconds")
    hidden_s: float = Field(description="of it, while the rank made batches or computed, seconds")
    hidden: float | None = Field(description="hidden_s / comm_s, fraction; null: there was no communication")


class Arrivals(Strict):
    """When one rank arrived at the reductions that it took part in: collectives, or rounds of snapshots."""

    reductions: int = Field(description="those of several ranks")
    last: int = Field(description="of them, those that waited for this rank: it came last")
    last_share: float | None = Field(description="last / reductions, fraction; null: there was none")
    late_ms: float | None = Field(description="mean time from the first arrival to this rank's, milliseconds")


IDLE_WHILE_PRESENT = 7
"""First version of results in which a rank that is absent is not idle, and ranks that joined later have a part in
`timeline`."""


class IdleTime(Strict):
    """The idle gaps of one rank that have the same cause, added up."""

    rank: int = Field(description="number of the rank")
    cause: str = Field(
        description="`late rank` (it stood in a collective), `orders: ...` (for what came then), `fault`, `startup`, `end`, "
        "`bookkeeping`, or `short`: gaps under a millisecond"
    )
    by: int | None = Field(description="the rank that was waited for, or went wrong; null: nobody")
    count: int = Field(description="gaps")
    seconds: float = Field(description="in all, seconds")
    longest_s: float = Field(description="the longest one, seconds")


class GradientNorm(Strict):
    """L2 norm of a step's gradients before clipping, in some fifty steps: of the mean gradient if ranks average inside the
    step, else of each rank's own gradient."""

    steps: int = Field(description="steps measured, of all ranks")
    first: float | None = Field(description="of the first step, mean over ranks; null: not finite")
    p50: float | None = Field(description="median over steps and ranks; null: none is finite")
    last: float | None = Field(description="of the last step measured, mean over ranks that did it; null: not finite")


class StepCosts(Strict):
    """What a sample costs, and how much of it is done in a second."""

    gradient_norm: GradientNorm | None = Field(default=None, description="null: no step was measured")
    tokens_per_sample: int | None = Field(default=None, description="tokens of a sample; null: it is no text")
    tokens_per_s: float | None = Field(
        default=None, description="tokens of all ranks / training time, tokens per second; null: samples are no text"
    )
    flop_per_sample: float | None = Field(
        default=None,
        description="floating-point operations of a forward and a backward pass by torch's FlopCounterMode, which knows "
        "products of matrices, convolutions, attention and (by a formula of ours) fused recurrent layers; null: not counted "
        "(profile.steps=0, or train.compile)",
    )
    flop_per_s: float | None = Field(
        default=None, description="the same of all ranks / training time, per second; null: not counted"
    )
    peak_share: float | None = Field(
        default=None,
        description="flop_per_s / the peak that the devices' makers state for the precision of the run, "
        "fraction; null: not counted, or no figure is known for the device, as of any CPU",
    )


class Volume(Strict):
    """The bytes that all ranks sent to synchronize replicas, compared with the formula for the mode."""

    bytes: int = Field(description="payload of all ranks, bytes; as `sync.bytes`")
    per_step: float | None = Field(description="bytes / steps of all ranks, bytes; null: no steps, or resumed")
    expected: int | None = Field(
        description="synchronizations x ranks x parameters x bytes of an element, bytes: docs/reference/validation.md; "
        "null: an unfinished, resumed or faulty run, one rank, or hidden collectives"
    )
    ratio: float | None = Field(description="bytes / expected; what is above 1 are buffers and bookkeeping")


class TimelineTotals(Strict):
    """What the ranks' slices show besides `breakdown`. Lists are by rank; empty if `breakdown` is."""

    steps: list[StepTime | None] = Field(description="null: the rank trained nothing")
    straggler_index: float | None = Field(
        description="the ranks' median work per step, without communication and waiting: the largest / the median of the "
        "ranks; null: no rank trained, or collectives are hidden inside forward and backward"
    )
    overlap: list[Overlap] | None = Field(description="null: collectives are hidden inside forward and backward")
    arrivals: list[Arrivals] = Field(description="who came last, and how late")
    idle: list[IdleTime] = Field(description="by rank, the cause that took most of its time first")
    volume: Volume
