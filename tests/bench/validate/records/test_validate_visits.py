"""The check of what ranks read, of runs that were gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.results.runfolder import find_runs
from bench.validate.baselines.reference import Sets
from bench.validate.checks import visits
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from ddp.core.messages.events import Progress, Ready, Resumed
from ddp.permutation import visited
from ddp.tally import MODULUS, tally
from tests.bench.streams import make_spec
from tests.bench.validate.told import DATA, write

SAMPLES, EPOCHS, SEEN = 1920, 3, 100


def gone_on_with(known: Records, read: Sequence[int], seen: int) -> Records:
    """Records of a run that read two passes before it was killed, and then `read` beside all of its last epoch."""
    events = [event for event in known.progress if isinstance(event, Progress)]
    before, after = events[0], events[-1]
    tallies = 2 * tally(range(SAMPLES)), tally(range(SAMPLES)) + tally(read)
    progress = [replace(e, visited=t % MODULUS) for e, t in zip((before, after), tallies, strict=True)]
    resumed = Resumed(at=after.at - 1e-9, index=1, epochs=1, samples=SAMPLES + seen, source="earlier")
    return replace(known, progress=progress, resumed=[resumed])


@pytest.mark.parametrize(
    ("backend", "left_out", "seen", "wrong"),
    [
        ("nccl", 0, SEEN, False),
        ("nccl", 5, SEEN, True),
        ("cpu", 0, 0, False),
        ("cpu", 5, 0, True),
        ("cpu", 5, SEEN, False),
    ],
)
def test_it_reads_what_follows_its_checkpoint(
    tmp_path: Path, backend: str, left_out: int, seen: int, wrong: bool
) -> None:
    write(tmp_path, make_spec("nccl_cadence"))
    ((run,), _) = find_runs(tmp_path)
    known = records(run)
    assert known is not None
    assert {event.samples for event in known.ready if isinstance(event, Ready)} == {SAMPLES}
    run = replace(run, metrics=run.metrics.model_copy(update={"backend": backend}))
    order = visited(run.metrics.seed, 1, SAMPLES, SAMPLES)
    known = gone_on_with(known, order[seen + left_out :].tolist(), seen)
    said = visits.is_beginning(run, known) and visits.amiss(None, run, known)
    assert bool(said) is wrong


@pytest.mark.parametrize(
    ("whole", "samples", "baseline", "wrong"),
    [
        (1960, SAMPLES, 1952, False),  # 30 x 64, of solo 61 x 32
        (1983, SAMPLES, 1952, False),
        (1984, SAMPLES, 1952, True),  # a batch of all ranks is missing
        (2000, SAMPLES, 2000, True),  # the baseline dropped nothing
        (SAMPLES, SAMPLES, 1888, True),  # this run did not
        (None, SAMPLES, 1984, True),
    ],
)
def test_ranks_may_drop_another_rest_of_an_epoch_than_solo(
    tmp_path: Path, whole: int | None, samples: int, baseline: int, wrong: bool
) -> None:
    """With `drop_last` an epoch is cut to batches of all ranks: two ranks failed against solo."""
    write(tmp_path, make_spec("nccl_sync"))
    ((run,), _) = find_runs(tmp_path)
    known = records(run)
    assert known is not None
    data = whole and replace(DATA, training=replace(DATA.training, samples=whole))
    known = replace(known, ready=[replace(event, data=data or None) for event in known.ready])
    total = whole or SAMPLES
    wanted = sum(tally(visited(run.metrics.seed, epoch, total, samples)) for epoch in range(EPOCHS))
    first, *others = [replace(event, visited=0) for event in known.progress]
    known = replace(known, progress=[replace(first, visited=wanted % MODULUS), *others])
    said = visits.amiss(Sets(training=baseline, evaluated=100, content=50.0), run, known)
    assert (f"an epoch has {samples} samples, the baseline's has {baseline}" == said) is wrong
    assert bool(said) is wrong
