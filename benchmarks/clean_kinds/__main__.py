"""Trains runs without a defect, of settings drawn at random, and judges them: any verdict of failure is a false alarm.

    python -m benchmarks.clean_kinds [--count N] [--first K] [--jobs N] [--scripts | --commands]

Run K has settings of its own. Two of three are commands, some killed behind a checkpoint and gone on with, some at another
number of ranks or joined; each third is a user's script, every other of these with extreme values. What is refused says why
in a line: a traceback of ours is an alarm too. Runs are kept under .benchmarks/kinds, and so it goes on after an
interruption. `make clean-runs` has many runs of a few settings, this has a few of many.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.results.runfolder import find_runs
from bench.validate import Verdict
from benchmarks import frame
from benchmarks.bugs.__main__ import failed, is_of_the_run
from benchmarks.clean_kinds.commands import Settings, drawn
from tests.warm import PICTURES, Warm

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / ".benchmarks" / "kinds"
NONE = RUNS / "no-baselines"
BENCH = "-m", "bench"
SCRIPTS = "script.py", "extremes.py"
LIMIT_S = 300.0
FEW_BATCHES = "REFUSED", "idle"
"""The verdict on an epoch that has fewer batches than ranks."""
CLEAR = re.compile(r"(^|: )(bench|ValueError|TypeError): .{20,}$|: no torch\.\w+ for this model here")
"""The last line of what is refused, or fails by a mistake in its settings."""


@dataclass(frozen=True)
class Trial:
    """A run in a folder of its own; `warm`: what its commands are forked from."""

    number: int
    warm: Warm
    settings: Settings | None
    """None: a script."""

    @property
    def folder(self) -> Path:
        """Return where its runs and what it printed lie."""
        return RUNS / str(self.number)

    def train(self) -> str:
        """Train it if it is not there; return what was told where it ended with an error."""
        done = self.folder / "done"
        if done.is_file():
            return done.read_text()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        code = self._script() if self.settings is None else self._command(self.settings)
        outcome = "" if code == 0 else f"exit code {code}: {self._last_line()}"
        done.write_text(outcome)
        return outcome

    def _script(self) -> int:
        script = Path(__file__).parent / SCRIPTS[self.number // 3 % 2]
        return self._run(str(script), str(self.number), str(self.folder))

    def _command(self, settings: Settings) -> int:
        quiet = f"output={self.folder}", "report=false", "validate=false"
        code = self._run(*BENCH, *settings.words, *quiet, kills=settings.kills[:1], joiners=settings.joiners)
        for kills in (settings.kills[at : at + 1] for at in range(1, len(settings.kills) + 1)):
            left = list(self.folder.glob("*/*/.tmp-*/checkpoints"))[:1]
            if code >= 0 or not left:
                break
            code = self._run(*BENCH, f"resume={left[0].parent}", *settings.resumed_with, kills=kills)
        return code

    def _run(self, *words: str, kills: Sequence[float] = (), joiners: int = 0) -> int:
        """Run a command; `kills`: until so many seconds after it has a new checkpoint. Return its exit code, negative for a
        signal."""
        began, joining, there = time.monotonic(), [], set(self._checkpoints())
        process = self.warm.start(ROOT, *words, env={PICTURES: "none"})
        while process.poll() is None:
            due = bool(kills) and not there.issuperset(self._checkpoints())
            if due or time.monotonic() - began > LIMIT_S:
                time.sleep(kills[0] if due else 0.0)
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)
            if joiners and not joining and list(self.folder.glob("*/*/.tmp-*/events.jsonl")):
                offer = *BENCH, "join", str(self.folder), "--ranks", str(joiners)
                joining.append(self.warm.start(ROOT, *offer, env={PICTURES: "none"}))
            time.sleep(0.05)
        for ended in (process, *joining):
            _, *texts = ended.result(LIMIT_S)
            with (self.folder / "output.txt").open("a") as output:
                output.writelines(texts)
        return process.returncode or 0

    def _checkpoints(self) -> list[Path]:
        return list(self.folder.glob("*/*/.tmp-*/checkpoints/[0-9]*"))

    def _last_line(self) -> str:
        lines = self.text().strip().splitlines()
        return lines[-1][:400] if lines else "nothing was printed"

    def text(self) -> str:
        """Return what its commands printed."""
        return (self.folder / "output.txt").read_text(errors="replace")


def crash(trial: Trial, outcome: str) -> str:
    """Return what is wrong about how a command or script ended."""
    if not outcome or (CLEAR.search(outcome) and not outcome.startswith("exit code 6")):
        return ""
    return f"ended without a clear word: {outcome}"


def judged(trial: Trial) -> str:
    """Return a line of what came of a trial."""
    began = time.monotonic()
    outcome = trial.train()
    alarms = [f"{one.name} {one.check}: {one.line}" for one in failed(trial.folder, NONE) if _counts(one, outcome)]
    alarms += [wrong] if (wrong := crash(trial, outcome)) else []
    if not outcome and not find_runs(trial.folder)[0]:
        alarms.append("no run came of it")
    name = str(trial.settings or trial.text().partition("\n")[0])
    lines = "\n    ".join(f"ALARM {alarm}" for alarm in alarms) or outcome or "no alarm"
    return f"{trial.number}: {name}: {time.monotonic() - began:.0f} s\n    {lines}"


def _counts(verdict: Verdict, outcome: str) -> bool:
    """Whether a verdict of failure is an alarm: not that a run failed which `crash` looks at."""
    known = (verdict.name, verdict.check) == FEW_BATCHES or (verdict.check == "status" and bool(outcome))
    return is_of_the_run(verdict) and not known


def main() -> int:
    """Return the exit code: 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=40, help="runs")
    parser.add_argument("--first", type=int, default=0, help="number of the first, which is its seed too")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--scripts", action="store_true", help="users' scripts alone")
    kinds.add_argument("--commands", action="store_true", help="commands alone")
    words = parser.parse_args()
    NONE.mkdir(parents=True, exist_ok=True)
    numbers = range(words.first, words.first + words.count)
    script = {number: words.scripts or (not words.commands and number % 3 == 2) for number in numbers}
    with Warm() as warm, ThreadPoolExecutor(words.jobs) as pool:
        lines = []
        for line in pool.map(judged, (Trial(n, warm, None if script[n] else drawn(n)) for n in numbers)):
            print(line, flush=True)
            lines.append(line)
    bad = sum("ALARM" in line for line in lines)
    refused = sum("exit code" in line and "ALARM" not in line for line in lines)
    print(f"\n{len(lines)} settings: {bad} with an alarm, {refused} ended with an error of their own")
    return int(bad > 0)


if __name__ == "__main__":
    frame.run_command(main)
