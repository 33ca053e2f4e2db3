"""Each batch, pass, step, meeting, evaluation and checkpoint of a rank has a slice, however short. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bench.results.runfolder import Run
from bench.validate.records.run_records import UNBLOCKED, Records
from ddp.backends import is_torch_native
from ddp.core.policies import meets_every_step

TURNED = 0.1
"""Fraction of backward passes that may have no forward pass before them: a rank without samples of a batch has none."""
MOST_DETAILED = 64
"""Most ranks of the engine `virtual` that record four slices a step; more record two."""
NEARLY = 0.9
"""Fraction of the expected number of batches that must have slices: some batches may be larger than the others."""


def lacking(run: Run, known: Records) -> str:
    """Name the rank that has too few slices of a kind: one for each batch that is read, each forward and backward pass
    of a batch with samples, each optimizer step, collective, evaluation of samples and checkpoint."""
    for rank in sorted({event.rank for event in known.progress}):
        turned, passes = known.turned[rank], known.slices[rank, "backward"]
        if turned > TURNED * passes and run.metrics.engine != "graph":
            return f"rank {rank} made {turned} of {passes} backward passes without a forward pass on that batch"
        for kind, least, what in _least(run, known, rank):
            if known.slices[rank, kind] < least:
                return f"rank {rank} recorded {known.slices[rank, kind]} timings of {kind} for {least} {what}"
    return ""


def _least(run: Run, known: Records, rank: int) -> Iterator[tuple[str, int, str]]:
    """Yield (kind of slices, their least number, what is counted) of a rank."""
    m, own = run.metrics, [event for event in known.progress if event.rank == rank]
    steps = sum(event.steps for event in own)
    passed = min(int(NEARLY * sum(event.samples for event in own) / m.batch_size), steps)
    behind = 0 if m.engine == "virtual" and m.world_size > MOST_DETAILED else passed
    # In virtual time the last step of an epoch takes none on a rank that has no samples of it.
    empty = len({event.epoch for event in own}) if m.engine == "virtual" and meets_every_step(m.policy) else 0
    yield from (("data", steps - empty, "steps"), ("forward", passed, "steps"), ("backward", behind, "steps"))
    yield "evaluate", sum(event.rank == rank and event.samples > 0 for event in known.evaluated), "evaluations"
    yield "checkpoint", sum(event.rank == rank for event in known.saved), "checkpoints"
    if m.engine != "graph":  # in graph mode with windows, replicas exchange and step inside the window
        yield "optimizer", behind, "steps"
        meetings = sum(event.rank == rank for event in known.averaged)
        if m.backend == UNBLOCKED:
            yield "copy", 2 * meetings, "copies to and from averages"
        elif m.world_size > 1 and not is_torch_native(m.backend):
            inside = meets_every_step(m.policy) and not known.averaged
            # After a loss a rank may train alone, or load an average that it missed.
            yield "exchange", 0 if known.losses else passed if inside else meetings, "meetings"
