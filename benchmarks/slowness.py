"""Measures whether slow ranks in real processes are named with their cause within three windows, and no rank in clean
runs.

    python -m benchmarks.slowness [--phases 200] [--clean 100] [--write]    # half an hour on two cores; can be interrupted

`--write` puts the table into docs/explanation/recovery.md. A run has three slow phases, drawn from its seed: rank, cause and
factor. Modes whose ranks meet in collectives do so over emulated links, which become slow, too. A phase that
`ddp.core.anomalies.slowness` names for its cause, or for its host, counts as right; phases named for the host are counted
separately.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.results.runfolder import find_runs
from benchmarks import frame
from benchmarks.documents import put
from ddp.core.anomalies.slowness import COMPUTE, HOST, INPUT, LINK, SlowFold, SlowRank
from ddp.core.messages.events import Progress
from ddp.core.settings.faults import Fault
from ddp.process.codec import decode

MODES = ("nccl_cadence", "cpu_async", "nccl_sync", "nccl_async", "cpu_cadence")
CAUSE = {"slow": COMPUTE, "input": INPUT, "link": LINK}
LINKED, SHORT, LONG = "nccl", "2ms/1gbit", "20ms/1gbit"
"""Modes of that backend have links: short ones where ranks meet in every step. The other lays snapshots down in memory."""
BEGINS, LASTS, EPOCHS = (1500, 3800, 6100), 1500, 18
"""Steps of a rank at which phases begin, and their length: three windows of any mode and more, as a shorter phase is over
before its windows are."""
IN_STEP = (1500, 3200, 4900), 900, 12
"""The same where ranks meet in every step, and windows are short."""
CLEAN_EPOCHS = 12
FACTORS = (1.5, 4.0)
WITHIN = 3
"""Windows in which a rank must be named."""
RIGHT, AS_HOST, MISSED, FALSE, SHORT_LIVED = "right", "host", "missed", "false", "short"
"""What comes of a phase, or of a naming without one. A phase is short, and not judged, if it or its run was over before so
many windows ended, whether it was named or not."""


@dataclass(frozen=True)
class SlowPhase:
    """A stretch of steps of a rank that take longer."""

    rank: int
    step: int
    lasts: int
    """Steps."""
    kind: str
    factor: float

    @property
    def faults(self) -> tuple[Fault, Fault]:
        """What the script says."""
        begin = Fault(self.rank, self.step, self.kind, self.factor)
        return begin, Fault(self.rank, self.step + self.lasts, "heal")


def mode_of(seed: int) -> str:
    """Return the mode of a run."""
    return MODES[seed % len(MODES)]


def course(seed: int) -> tuple[tuple[int, ...], int, int]:
    """Return (steps at which phases begin, their length in steps, epochs) of a run."""
    return IN_STEP if mode_of(seed) == "nccl_sync" else (BEGINS, LASTS, EPOCHS)


def phases_of(seed: int) -> list[SlowPhase]:
    """Return the phases of a run."""
    dice = random.Random(seed)
    begins, lasts, _ = course(seed)
    able = [kind for kind in sorted(CAUSE) if kind != "link" or mode_of(seed).startswith(LINKED)]
    kinds = [dice.choice(able) for _ in begins]
    return [
        SlowPhase(dice.randrange(2), step, lasts, kind, round(dice.uniform(*FACTORS), 2))
        for step, kind in zip(begins, kinds, strict=True)
    ]


class WindowedFold(SlowFold):
    """Keeps the ends of windows, and when ranks had done so many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[int, list[float]] = {0: [], 1: []}
        self.steps: dict[int, list[tuple[int, float]]] = {0: [(0, 0.0)], 1: [(0, 0.0)]}

    def add(self, record: object) -> None:
        """Take note of a record."""
        super().add(record)
        if isinstance(record, Progress):
            mine = self.steps[record.rank]
            mine.append((mine[-1][0] + record.steps, record.at))
            if self._windows[record.rank].began is None:
                self.ends[record.rank].append(record.at)

    def when(self, rank: int, step: int) -> float | None:
        """Return when the last report before a step was made; None: the rank never got there."""
        before = [at for steps, at in self.steps[rank] if steps <= step]
        return before[-1] if self.steps[rank][-1][0] > step else None


def judged(folder: Path, phases: list[SlowPhase]) -> Iterator[tuple[str, str]]:
    """Yield (kind of the phase, what came of it) for each phase, and for each naming without one."""
    fold = WindowedFold()
    for line in (folder / "events.jsonl").read_bytes().splitlines():
        fold.add(decode(line))
    claimed = list[SlowRank]()
    for phase in phases:
        begin, end = fold.when(phase.rank, phase.step), fold.when(phase.rank, phase.step + phase.lasts)
        if begin is None:  # the run was over before it
            yield phase.kind, SHORT_LIVED
            continue
        later = [at for at in fold.ends[phase.rank] if at > begin]
        until = later[min(WITHIN, len(later) - 1)] + 1e-9 if later else begin  # the first is in part before
        named = named_of(fold.ranks, phase.rank, begin, until, min(end or until, until))
        claimed += [*named, *later_of(fold.ranks, phase, until, end or until)]
        causes = [each.cause for each in named]
        found = RIGHT if CAUSE[phase.kind] in causes else AS_HOST if HOST in causes else MISSED
        short = sum(end is None or at <= end for at in later) < WITHIN
        yield phase.kind, SHORT_LIVED if short else found
    yield from (("none", AS_HOST if each.cause == HOST else FALSE) for each in fold.ranks if each not in claimed)


def named_of(ranks: Sequence[SlowRank], rank: int, begin: float, until: float, held: float) -> list[SlowRank]:
    """Return the namings of a rank that count in a phase: those that come in its first windows, and those of before that
    hold until `held`, too: who meets the next phase before it is as fast as ever is not named anew."""
    return [
        each
        for each in ranks
        if each.rank == rank
        and (begin < each.named <= until or (each.named <= begin and (each.healed is None or each.healed >= held)))
    ]


def later_of(ranks: Sequence[SlowRank], phase: SlowPhase, since: float, end: float) -> list[SlowRank]:
    """Return the later namings of a phase's rank for its cause while the phase lasts: of one that was named for its host
    first."""
    mine = (each for each in ranks if (each.rank, each.cause) == (phase.rank, CAUSE[phase.kind]))
    return [each for each in mine if since < each.named <= end]


def trained(tree: Path, seed: int, clean: bool) -> Path:
    """Return the folder of a run, which is trained if it is not there. Raises CalledProcessError."""
    phases = [] if clean else phases_of(seed)
    script = ",".join(str(fault) for phase in phases for fault in phase.faults)
    place = tree / f"{'clean' if clean else 'slow'}-{seed}"
    if place.is_dir() and (there := find_runs(place)[0]):
        return there[0].path
    links = "" if not mode_of(seed).startswith(LINKED) else SHORT if mode_of(seed) == "nccl_sync" else LONG
    words = [
        "model=mlp",
        f"mode={mode_of(seed)}",
        "world_size=2",
        f"seed={seed}",
        f"train.epochs={CLEAN_EPOCHS if clean else course(seed)[2]}",
    ]
    words += [
        f"cluster.faults=[{script}]",
        f"cluster.links=[{links}]",
        "report=false",
        "validate=false",
        "audit=false",
        f"output={place}",
        "--quiet",
    ]
    frame.bench(*words)
    (run,), _ = find_runs(place)
    return run.path


def outcomes(tree: Path, clean: bool, wanted: int) -> Counter[tuple[str, str]]:
    """Return how often each (kind, outcome) came in runs enough for so many phases, or so many clean runs; what was trained
    before is not trained again."""
    total = Counter[tuple[str, str]]()
    for seed in count():
        if (seed if clean else judged_phases(total)) >= wanted:
            return total
        found = list(judged(trained(tree, seed, clean), [] if clean else phases_of(seed)))
        print("clean" if clean else "slow", seed, found, flush=True)
        total.update(found)
    raise AssertionError("seeds do not end")


def judged_phases(total: Counter[tuple[str, str]]) -> int:
    """Return the number of phases that count."""
    return sum(n for (kind, word), n in total.items() if kind != "none" and word != SHORT_LIVED)


def table(slow: Counter[tuple[str, str]], clean: Counter[tuple[str, str]], runs: int) -> str:
    """Return the page."""
    words = (RIGHT, AS_HOST, MISSED, FALSE, SHORT_LIVED)
    rows = []
    for kind in (*sorted(CAUSE), "none"):
        source = slow if kind != "none" else slow + clean
        rows.append([f"`{kind}`" if kind != "none" else kind, *(source[kind, word] for word in words)])
    phases = judged_phases(slow)
    good = sum(n for (kind, word), n in slow.items() if kind != "none" and word in (RIGHT, AS_HOST))
    false = sum(n for (_, word), n in clean.items() if word == FALSE)
    text = (
        f"{good} of {phases} phases of {FACTORS[0]} to {FACTORS[1]:.0f} times are named right within {WITHIN} windows."
    )
    return f"{frame.table(rows, ['fault', *words], 1)}\n\n{text} In {runs} clean runs {false} were named falsely."


def main() -> int:
    """Train, judge and print; 1 if fewer than 99 % are right, or a clean run has a slow rank."""
    parser = frame.options(__doc__, "write the table into the document")
    parser.add_argument("--phases", type=int, default=200)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--runs", type=Path, default=Path("runs/slowness"))
    options = parser.parse_args()
    slow = outcomes(options.runs, False, options.phases)
    clean = outcomes(options.runs, True, options.clean)
    text = table(slow, clean, options.clean)
    print(text)
    if options.write:
        put("explanation/recovery.md", slowness=text)
    missed = sum(n for (kind, word), n in slow.items() if kind != "none" and word == MISSED)
    false = sum(n for (_, word), n in clean.items() if word == FALSE)
    return int(missed > options.phases / 100 or false > 0)


if __name__ == "__main__":
    frame.run_command(main)
