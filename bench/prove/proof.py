"""The proof of a mode: compares its steps with plain PyTorch, and says what the differences mean.

There are two references. The oracle computes every rank's slice in one process: bits must be equal where the order of
sums is known. The whole batch on one device differs by rounding, and by layers that look at the batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.prove import ranks
from bench.prove.engines import run_engine
from bench.prove.entrants import Entrant, ProofEntry, distance, entrant, fingerprint, gap, largest
from bench.prove.oracle import OracleCourse, OracleStep, PlainTrainer, State, replay
from bench.prove.provable import Way, unproved
from bench.prove.ranks import CourseResult
from bench.prove.tasks import Make, check_size, double, gradient, least, plain
from bench.prove.windows import STRIDE, replay_windows
from ddp.backends import BACKENDS, SyncKind
from ddp.core.settings.steps import PLAIN, StepSettings

CLOSE, LOOSE = 1e-9, 1e-3
"""Largest allowed difference in double precision; and in single precision, for models that run in no other. As all
differences here, they are fractions of a tensor's largest value, if that is above 1 (`bench.prove.entrants.gap`)."""
SUMMED = 1e-5
"""Largest allowed difference of a loss: shares of ranks are summed in another order, and in double precision."""
AVERAGED = "averages of windows; which steps make a window is the policy's: bench replay"


@dataclass(frozen=True)
class StepDifferences:
    """The largest differences of a step from the oracle; 0.0: equal bit for bit; None: not compared."""

    step: int
    gradients: float | None
    parameters: float | None
    loss: float | None


@dataclass(frozen=True)
class Proof:
    """The result for one mode and number of ranks."""

    mode: str
    ranks: int
    verdict: str
    """`exact`, `close`, `different`, or `not proved`."""
    why: str = ""
    precision: str = "float32"
    steps: list[StepDifferences] = field(default_factory=list)
    replicas_equal: bool | None = None
    """Whether all ranks had equal bits after every step; None: they need not."""
    unshard_equal: bool | None = None
    """Whether gathering the whole model and sharding it again changes no bit; None: nothing is sharded."""
    parameter_sums: list[float] = field(default_factory=list)
    """By rank, the sum of parameters and buffers after the last step; empty: not computed."""
    gradient_norms: list[float] = field(default_factory=list)
    """By step, the L2 norm of the gradient that the ranks used; empty: not computed."""

    @property
    def failed(self) -> bool:
        """Whether a difference is not allowed."""
        return self.verdict == "different"

    def worst(self, name: str) -> float | None:
        """Return the largest difference over the steps."""
        return largest(value for step in self.steps if (value := getattr(step, name)) is not None)


def prove(
    make: Make,
    ways: Sequence[Way],
    steps: int,
    batch: int,
    seed: int = 5,
    preload: tuple[str, ...] = (),
    how: StepSettings = PLAIN,
) -> Iterator[Proof]:
    """Prove a task in each way; yield the results, grouped by oracle. Raises what the task raises.

    `batch`: samples of a micro-batch of one rank; `how`: the number of micro-batches in a step, and the precision."""
    groups: dict[Any, list[Trial]] = {}
    for way in ways:
        if why := unproved(way.engine, way.backend):
            yield Proof(way.mode, way.ranks, "not proved", why)
            continue
        trial = _trial(way, _course(make, way.ranks, steps, batch, seed, how))
        if trial.way.backend is None:
            yield _of_engine(way, trial.course)
        else:
            alike = (trial.way.backend,) if trial.windows else (trial.who.rule, trial.precision)
            groups.setdefault((way.ranks, trial.windows, alike), []).append(trial)
    for trials in groups.values():
        with tempfile.TemporaryDirectory(prefix="bench-prove-", ignore_cleanup_errors=True) as folder:
            yield from (_windowed if trials[0].windows else _stepped)(trials, Path(folder), preload)


def _course(make: Make, ranks: int, steps: int, batch: int, seed: int, how: StepSettings) -> OracleCourse:
    whole = batch * how.accumulate
    return OracleCourse(plain(make), ranks, whole, steps, seed=seed, least=least(make), how=how)


@dataclass(frozen=True)
class Trial:
    """A way, and how to compare it with the oracle."""

    way: Way
    who: Entrant
    course: OracleCourse
    windows: bool
    """Whether replicas are averaged between steps."""
    limit: float
    """Largest allowed difference of a value."""
    precision: str


def _trial(way: Way, course: OracleCourse) -> Trial:
    who, spec = entrant(way.backend or ""), BACKENDS.get(way.backend or "")
    windows = spec is not None and not (SyncKind.STEP in spec.sync and way.policy.every_step)
    check_size(course.task().train_data(), course.steps * (STRIDE if windows else 1), course.batch * course.world_size)
    # Averages of snapshots, and of a service's own code, are rounded elsewhere than the oracle's.
    rounded = windows and spec is not None and (SyncKind.SNAPSHOT in spec.sync or bool(spec.service))
    if spec is None or (way.ranks <= who.exact and not rounded):
        return Trial(way, who, course, windows, 0.0, "float32")
    if course.how.half:
        return Trial(way, who, course, windows, LOOSE, "float32, as half precision is none of double")
    wide = replace(course, task=double(course.task))
    try:
        list(replay(replace(wide, steps=1), who.rule))
    except Exception:  # it creates single-precision tensors itself
        return Trial(way, who, course, windows, LOOSE, "float32, as the model does not run in double")
    return Trial(way, who, wide, windows, CLOSE, "float64")


def _judged(trial: Trial, steps: list[StepDifferences], equal: bool | None, whole: bool | None, why: str = "") -> Proof:
    """Return the proof for these differences. `equal`: whether replicas are equal; `whole`: whether gathering the model
    changes nothing."""
    way, limit = trial.way, trial.limit
    why = AVERAGED if trial.windows else why
    proof = Proof(way.mode, way.ranks, "exact", why, trial.precision, steps, equal, whole)
    apart = max(proof.worst(name) or 0.0 for name in ("gradients", "parameters"))
    loss = proof.worst("loss") or 0.0
    if equal is False or whole is False:
        what = "replicas have other bits" if equal is False else "assembling the model changes bits"
        return replace(proof, verdict="different", why=what)
    if not loss <= SUMMED:
        return replace(proof, verdict="different", why=f"the loss is off by {loss:.3g}")
    if apart == 0.0:
        return proof
    if apart <= limit:
        return replace(proof, verdict="close", why=f"sums in another order; {limit:g} is allowed")
    return replace(proof, verdict="different", why=f"off by {apart:.3g} where {limit:g} is allowed")


def _truth(steps: Iterator[OracleStep], names: Sequence[str], first: State, folder: Path) -> list[float]:
    """Write the oracle's states and gradients to where ranks compare them; return its losses."""
    folder.mkdir()
    torch.save(first, folder / "-1.pt")
    losses = []
    for number, step in enumerate(steps):
        _write(folder / f"{number}", step.state)
        pairs = zip(names, step.gradients, strict=True)
        gradients = {name: torch.zeros_like(step.state[name]) if g is None else g for name, g in pairs}
        (folder / f"gradient-{number}").mkdir()
        _write(folder / f"gradient-{number}" / f"{number}", gradients)
        losses.append(step.loss)
    return losses


def _write(path: Path, state: State) -> None:
    path.with_name(f"{path.name}.sha256").write_text(fingerprint(state), encoding="utf-8")
    torch.save(state, path.with_name(f"{path.name}.pt"))


def _stepped(trials: list[Trial], folder: Path, preload: tuple[str, ...]) -> Iterator[Proof]:
    """Compare every step's gradient, parameters and loss, for ways that share one oracle."""
    course, truth = trials[0].course, folder / "truth"
    names, first = initial(course)
    oracle = _truth(replay(course, trials[0].who.rule), names, first, truth)
    probes = [
        (replace(course, task=partial(gradient, course.task, truth / f"{step - 1}.pt"), first=step, steps=1), step)
        for step in range(course.steps)
    ]
    work = [
        [
            ProofEntry(trial.who, course, trial.way.policy, truth),
            *(
                ProofEntry(trial.who, probe, trial.way.policy, truth / f"gradient-{k}", tuple(names))
                for probe, k in probes
            ),
        ]
        for trial in trials
    ]
    for trial, results in zip(trials, _results(work, folder, preload), strict=True):
        if isinstance(results, str):
            yield _failed(trial.way, results)
            continue
        main, *gradients = results
        differences = [
            StepDifferences(
                step,
                largest(apart[0] for apart in gradients[step].apart),
                largest(apart[step] for apart in main.apart),
                gap(main.losses[step], oracle[step]),
            )
            for step in range(course.steps)
        ]
        equal = all(digests == main.digests[0] for digests in main.digests)
        proof = _judged(trial, differences, equal, main.unshards)
        yield replace(proof, parameter_sums=main.sums, gradient_norms=[each.norm for each in gradients])


def _results(
    work: list[list[ProofEntry]], folder: Path, preload: tuple[str, ...]
) -> Iterator[list[CourseResult] | str]:
    """Train lists of entries; yield the results of each list, or the error of a rank. After an error, the remaining
    lists run on new ranks."""
    start, attempt = 0, 0
    while start < len(work):
        place = folder / f"ranks-{attempt}"
        place.mkdir()
        left = work[start:]
        ranks.train([entry for entries in left for entry in entries], place, preload)
        number, attempt = 0, attempt + 1
        for entries in left:
            numbers, number, start = range(number, number + len(entries)), number + len(entries), start + 1
            problems = [text for each in numbers if (text := ranks.failure(each, entries[0].course.world_size, place))]
            if problems:
                yield problems[0]
                break
            yield [ranks.trained(each, entries[0].course.world_size, place) for each in numbers]


def _failed(way: Way, text: str) -> Proof:
    return Proof(way.mode, way.ranks, "not proved", f"a rank ended with {ranks.error_line(text)}")


def initial(course: OracleCourse) -> tuple[list[str], State]:
    """Return the names of the trained parameters, and the common initial state."""
    model = PlainTrainer(course).model
    return [name for name, p in model.named_parameters() if p.requires_grad], model.state_dict()


def _windowed(trials: list[Trial], folder: Path, preload: tuple[str, ...]) -> Iterator[Proof]:
    """Compare every rank's parameters and mean loss after each average. All ways share one backend."""
    first, truth, losses = trials[0], folder / "truth", []
    course = first.course
    truth.mkdir()
    goes_on = SyncKind.SNAPSHOT in BACKENDS[first.who.engine].sync
    for number, (means, states) in enumerate(replay_windows(course, goes_on)):
        losses.append(sum(means))
        for rank, state in enumerate(states):
            _write(truth / f"{number}-{rank}", state)
    (results,) = _results([[ProofEntry(first.who, course, first.way.policy, truth)]], folder, preload)
    for trial in trials:
        if isinstance(results, str):
            yield _failed(trial.way, results)
            continue
        (main,) = results
        differences = [
            StepDifferences(
                number,
                None,
                largest(apart[number] for apart in main.apart),
                gap(main.losses[number] / course.world_size, losses[number] / course.world_size),
            )
            for number in range(course.steps)
        ]
        yield _judged(trial, differences, len({digests[-1] for digests in main.digests}) == 1, None)


def _of_engine(way: Way, course: OracleCourse) -> Proof:
    """Compare the final state of an engine with a loop of its own after a few steps."""
    steps = course.steps if way.ranks == 1 else 1  # later steps of several replicas follow their speeds
    course = replace(course, steps=steps)
    try:
        ended = run_engine(way.engine, way.policy, course)
    except Exception as error:
        return Proof(way.mode, way.ranks, "not proved", f"the engine ended with {type(error).__name__}: {error}")
    rule = entrant("").rule if way.ranks > 1 else replace(entrant("").rule, buffers="own")  # no replicas to synchronize
    oracle = list(replay(ended.course, rule))
    gaps = [distance(own, oracle[-1].state) for own in ended.states]
    loss = gap(ended.loss, sum(step.loss for step in oracle) / steps)
    equal = len({fingerprint(own) for own in ended.states}) == 1
    trial = Trial(way, entrant(""), course, False, 0.0, "float32")
    why = "one global batch; how later ones are cut follows the speeds" if way.ranks > 1 else ""
    return _judged(trial, [StepDifferences(steps - 1, None, max(gaps), loss)], equal, None, why)
