"""Measures whether a kill and a resume from the checkpoint cost accuracy, in modes that do not resume bit for bit;
compared with the spread of seeds.

    python -m benchmarks.resume [--epochs 10] [--write]    # a few minutes on two cores

`--write` puts the table into docs/explanation/recovery.md.

Every seed is trained twice with the same settings: once uninterrupted; once killed (SIGKILL to all its processes) at a
checkpoint drawn from the seed, and resumed. The two are interleaved, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import math
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from bench.results.runfolder import find_runs
from bench.results.schema import Metrics
from benchmarks import frame
from benchmarks.documents import put
from tests.warm import Warm, wait_for

MODES = ("nccl_cadence", "nccl_async", "cpu_cadence", "cpu_async")
SEEDS = range(5)
QUIET = ("report=false", "validate=false")
DOUBT = 2.0
"""Standard errors of the difference of two means beyond which it is not put down to the seeds."""


@dataclass
class Sample:
    """Final accuracies and training losses, by seed."""

    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def add(self, metrics: Metrics) -> None:
        """Take in a finished run."""
        assert metrics.final.eval is not None
        assert metrics.final.train_loss is not None
        self.accuracy.append(metrics.final.eval)
        self.loss.append(metrics.final.train_loss)


def difference(whole: list[float], cut: list[float]) -> tuple[float, float]:
    """(mean of `cut` less mean of `whole`, standard error of that by the spread of both)."""
    error = math.sqrt(stdev(whole) ** 2 / len(whole) + stdev(cut) ** 2 / len(cut))
    return fmean(cut) - fmean(whole), error


def trained(warm: Warm, folder: Path, *words: str) -> Metrics:
    """The result of a command that trains one run in `folder`. RuntimeError if it does not."""
    code, _, err = warm.start(folder, "-m", "bench", *words, *QUIET).result(300)
    if code:
        raise RuntimeError(f"exit code {code}: {err}")
    (run,), _ = find_runs(folder)
    return run.metrics


def killed(warm: Warm, folder: Path, *words: str, checkpoint: int) -> Path:
    """The hidden folder of a run that was killed once it had that checkpoint. RuntimeError if it ended before."""
    process = warm.start(folder, "-m", "bench", *words, *QUIET)

    def there() -> list[Path]:
        found = folder.glob("runs/*/*/.tmp-*/checkpoints/[0-9]*")
        return [path for path in found if int(path.name) >= checkpoint]

    found = wait_for(there, process, 300)
    process.kill_all()
    if not found:
        raise RuntimeError("the run ended before it was killed")
    hidden: Path = found[0].parents[1]
    return hidden


def compare(epochs: int) -> dict[str, tuple[Sample, Sample]]:
    """Mode -> (uninterrupted, killed and gone on with)."""
    samples = {mode: (Sample(), Sample()) for mode in MODES}
    with Warm() as warm, tempfile.TemporaryDirectory(prefix="resume-") as scratch:
        for seed in SEEDS:
            for mode in MODES:
                words = (
                    "model=mlp",
                    "data.name=digits",
                    f"train.epochs={epochs}",
                    "world_size=2",
                    "checkpoint.spacing_s=0",
                )
                words = (*words, f"mode={mode}", f"seed={seed}")
                whole, cut = (Path(scratch) / f"{mode}-{seed}-{kind}" for kind in ("whole", "cut"))
                whole.mkdir()
                cut.mkdir()
                samples[mode][0].add(trained(warm, whole, *words))
                at = random.Random(seed).randrange(1, max(2, 3 * epochs // 4))
                hidden = killed(warm, cut, *words, checkpoint=at)
                resumed = trained(warm, cut, f"resume={hidden}")
                assert resumed.resumed is not None
                samples[mode][1].add(resumed)
                print(f"seed {seed} {mode}: killed at checkpoint {at} or later", flush=True)
    return samples


def table(samples: dict[str, tuple[Sample, Sample]], epochs: int) -> str:
    """The page: a table, what it means, and one sentence on what is beyond the spread."""
    rows, beyond = [], []
    for mode, (whole, cut) in samples.items():
        row = {"mode": mode}
        for name, ours, theirs, digits in (
            ("accuracy", whole.accuracy, cut.accuracy, 4),
            ("loss", whole.loss, cut.loss, 4),
        ):
            gap, error = difference(ours, theirs)
            row[name] = f"{fmean(ours):.{digits}f} ± {stdev(ours):.{digits}f}"
            row[f"{name}: resumed less that"] = f"{gap:+.{digits}f} ± {error:.{digits}f}"
            if abs(gap) > DOUBT * error:
                beyond.append(f"{name} of {mode}")
        rows.append(row)
    verdict = f"beyond it: {', '.join(beyond)}" if beyond else "none is beyond it"
    return (
        f"`mlp`, {epochs} epochs of `digits`, 2 ranks, {len(SEEDS)} seeds, killed between the first checkpoint "
        f"and three quarters of the way. Mean ± spread of the seeds; the difference of the means ± its standard error.\n\n"
        f"{frame.table(rows)}\n\n"
        f"Of {2 * len(rows)} differences, measured against {DOUBT:g} standard errors: {verdict}.\n"
    )


def main() -> None:
    """Run the command."""
    parser = frame.options(__doc__, "put the tables into docs/explanation/recovery.md")
    parser.add_argument("--epochs", type=int, default=10)
    asked = parser.parse_args()
    made = table(compare(asked.epochs), asked.epochs)
    print(made)
    if asked.write:
        put("explanation/recovery.md", resume=made)


if __name__ == "__main__":
    frame.run_command(main)
