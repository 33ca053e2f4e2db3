"""The audit between steps: what stands still is left alone, and the optimizer is the task's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.audit.kept_files import Name, Part, Parts
from bench.audit.repeated.between import ends
from ddp.backends import snapshot
from ddp.checkpoint.parts import RankParts
from ddp.core.messages.events import Finished, Progress, Ready, Saved
from ddp.core.settings.checkpoints import Checkpointing
from ddp.engine.loop import TrainingLoop
from ddp.engine.rank import RankLoop
from ddp.replica import replica as replicas
from ddp.replica.evidence import keeper
from ddp.replica.replica import Replica
from tests.bench.audit.audit_breaks import ADAM, Break, wrapped
from tests.bench.audit.audited import audited, different, train_alone
from tests.bench.audit.test_audit_ranks import train_together
from tests.runtime.conftest import in_process as in_process
from tests.slow import every


def rounded(save: Any, self: Any, *about: Any) -> Any:
    done = save(*about)
    for state in self.replica.optimizer.state.values():
        state["exp_avg"].copy_(state["exp_avg"].bfloat16())
    return done


def nudged(evaluate: Any, self: Any, *about: Any) -> Any:
    done = evaluate(*about)
    with torch.no_grad():
        self.model.get_parameter("0.weight").mul_(1.0001)
    return done


def grouped(patch: pytest.MonkeyPatch) -> None:
    usable = replicas.usable

    def broken(made: Any, state: Any) -> Any:
        optimizer = usable(made, state)
        (group,) = optimizer.param_groups
        *most, last = group["params"]
        group["params"] = most
        optimizer.add_param_group({**group, "params": [last]})
        return optimizer

    patch.setattr(replicas, "usable", broken)


BROKEN: dict[str, tuple[Break, str]] = {
    "moments rounded by a checkpoint": (
        wrapped(TrainingLoop, "save", rounded),
        "exp_avg changed after the evaluation and checkpoint 0",
    ),
    "weights moved by an evaluation": (
        wrapped(Replica, "evaluate", nudged),
        "parameters 0.weight changed after the ev",
    ),
    "other groups of parameters": (grouped, "learning rate after"),
}
SAVING: dict[str, Any] = {"checkpoints": Checkpointing(every=1, spacing_s=0.0)}


def saving(folder: Path) -> dict[str, Any]:
    """What a job needs that makes checkpoints."""
    (folder / "kept").mkdir(parents=True)
    return SAVING | {"checkpoint_folder": folder / "kept"}


@pytest.mark.parametrize("name", BROKEN)
def test_what_changes_between_steps_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, sign = BROKEN[name]
    with monkeypatch.context() as patch:
        breaks(patch)
        job, records = train_alone(tmp_path, ADAM, **saving(tmp_path))
    found = different(audited(job, records))
    assert any(sign in line for line in found), found


def test_what_stands_still_is_left_alone(tmp_path: Path) -> None:
    report = audited(*train_alone(tmp_path, ADAM, **saving(tmp_path)))
    assert different(report) == []
    assert report.count("equal", "average") >= 2


@pytest.mark.parametrize(
    "mode", every(2, ["nccl_sync", "nccl_cadence", "cpu_async", "zero2", "graph_sync", "graph_cadence"])
)
def test_so_it_is_on_several_ranks(tmp_path: Path, in_process: Callable[[], None], mode: str) -> None:
    graph = mode.startswith("graph")
    changes = {"norms": ()} if mode == "graph_cadence" else {}  # windows have several steps
    assert different(audited(*train_together(tmp_path, mode, ADAM), one_process=graph, **changes)) == []


def test_an_evaluation_that_moves_buffers_of_a_rank_is_named(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(evaluate: Any, self: Any, part: int, *about: Any) -> Any:
        done = evaluate(part, *about)
        for buffer in self.model.buffers() if part == 1 else ():
            buffer.add_(1)
        return done

    with monkeypatch.context() as patch:
        wrapped(Replica, "evaluate", moved)(patch)
        job, records = train_together(tmp_path, "nccl_sync", ADAM)
    found = different(audited(job, records))
    assert any("buffers" in line and "after the evaluation" in line for line in found), found


def reset(ready: Any, self: Any, *about: Any) -> Any:
    """Give a rank other weights once it has said what it begins with; the next average hides it."""
    done = ready(*about)
    if self.rank == 1:
        with torch.no_grad():
            self.replica.model.get_parameter("0.weight").mul_(1.5)
    return done


def worn(averaged: Any, self: Any, *about: Any) -> Any:
    """Change the replica behind each average that it took in and reported."""
    done = averaged(*about)
    with torch.no_grad():
        self.loop.replica.model.get_parameter("0.weight").mul_(1.5)
    return done


@pytest.mark.parametrize("mode", every(1, ["nccl_cadence", "cpu_async"]))
@pytest.mark.parametrize(
    ("breaks", "sign"),
    [
        (wrapped(TrainingLoop, "ready", reset), "rank 1: parameters 0.weight changed after the start"),
        (wrapped(RankLoop, "_averaged", worn), "parameters 0.weight changed after the average of round"),
    ],
    ids=["start", "average"],
)
def test_what_changes_where_nothing_is_trained_is_named(
    tmp_path: Path,
    in_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    breaks: Break,
    sign: str,
    mode: str,
) -> None:
    with monkeypatch.context() as patch:
        breaks(patch)
        job, records = train_together(tmp_path, mode, ADAM)
    found = different(audited(job, records))
    assert any(sign in line for line in found), found


def halved(snapshot: Any, self: Any, *about: Any) -> Any:
    """Halve the optimizer's momenta behind each snapshot."""
    done = snapshot(*about)
    for state in self._loop.replica.optimizer.state.values():
        state["exp_avg"].div_(2)
    return done


def test_what_a_snapshot_changes_is_named(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        wrapped(snapshot.Backend, "snapshot", halved)(patch)
        job, records = train_together(tmp_path, "cpu_async", ADAM)
    found = different(audited(job, records))
    assert any("exp_avg changed after the snapshot of round" in line for line in found), found


@contextmanager
def looked(pairs: Any) -> Iterator[None]:
    """Show an average in the replica's place, and leave its running statistics there."""
    kept = [(tensor, tensor.clone(), other) for tensor, other in pairs]
    for tensor, _, other in kept:
        tensor.copy_(other)
    yield
    for place, (tensor, own, _) in enumerate(kept):
        if place != 1:
            tensor.copy_(own)


def test_what_a_look_at_an_average_leaves_is_named(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "swapped", looked)
        job, records = train_together(tmp_path, "cpu_async", ADAM)
    found = different(audited(job, records))
    assert any("changed after the average of round" in line and "buffers" in line for line in found), found


def test_a_layer_that_is_left_out_of_a_step_is_named(
    tmp_path: Path, in_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a bundled model: a user's may leave one out."""
    steps: Counter[int] = Counter()

    def left_out(clip: Any, self: Any, team: Any) -> None:
        clip(team)
        steps[id(self)] += 1
        if steps[id(self)] == 9:
            self.state.parameters[0].grad = None

    with monkeypatch.context() as patch:
        wrapped(Replica, "_clip", left_out)(patch)
        job, records = train_together(tmp_path, "nccl_cadence", ADAM)
    sign = "the optimizer's step of 0.weight counted"
    # A step that was kept is named itself; which are depends on the time.
    assert any(sign in line or "parameter 0.weight" in line for line in different(audited(job, records)))
    assert not any(sign in line for line in different(audited(job, records, model="")))


def offloaded(report: Any, self: Any, *about: Any) -> Any:
    """Lose the optimizer's momenta behind a report, from the second epoch on."""
    report(*about)
    if self.begun:
        for state in self.replica.optimizer.state.values():
            state["exp_avg"].zero_()


def compressed(average: Any, self: Any, *about: Any) -> Any:
    """Round rank 1's parameters ahead of each average, in place."""
    with torch.no_grad():
        for values in self._loop.replica.state.parameters if self._rank == 1 else ():
            values.copy_(values.bfloat16())
    return average(*about)


@pytest.mark.parametrize(
    ("mode", "breaks", "sign"),
    [
        ("nccl_cadence", wrapped(TrainingLoop, "report", offloaded), "exp_avg changed after step"),
        ("nccl_cadence", wrapped(RankLoop, "_average", compressed), "parameters 0.bias changed after step"),
        ("cpu_async", wrapped(RankLoop, "_average", compressed), "parameters 0.bias changed after step"),
    ],
    ids=["report", "average", "snapshot"],
)
def test_what_changes_behind_a_step_is_named(
    tmp_path: Path,
    in_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    breaks: Break,
    sign: str,
) -> None:
    """Of models, too, of which there is no room for a second step."""
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "CHEAP", 0)
        breaks(patch)
        job, records = train_together(tmp_path, mode, ADAM)
    found = different(audited(job, records))
    assert any(sign in line for line in found), found
    assert not any(sign in line for line in different(audited(job, records, moves=True)))


def test_ranks_that_end_with_other_models_are_named() -> None:
    name = Name("parameters", "0.weight")

    def model(*values: float) -> Parts:
        return {name: [Part(torch.tensor(values), "", 0, 1, (2,))]}

    items = list(ends({0: model(1.0, 2.0), 1: model(1.0, 2.0), 2: model(1.0, 2.5), 3: {name: []}}))
    assert [item.outcome for item in items] == ["equal", "different", "different"]
    assert items[1].line == "parameter 0.weight of its final model differs from rank 0's"
    assert list(ends({})) == list(ends({0: model(1.0, 2.0)})) == []


def test_time_of_saving_is_no_time_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank, which nobody orders to pause."""

    def slow(save: Any, self: Any, *about: Any) -> Any:
        time.sleep(0.2)
        return save(*about)

    with monkeypatch.context() as patch:
        wrapped(RankParts, "save", slow)(patch)
        _, records = train_alone(tmp_path, ADAM, **saving(tmp_path))
    saved = sum(isinstance(record, Saved) for record in records)
    busy = sum(record.busy_s for record in records if isinstance(record, Progress))
    began = next(record.at for record in records if isinstance(record, Ready))
    ended = next(record.at for record in records if isinstance(record, Finished))
    assert saved >= 2
    assert busy <= ended - began - 0.2 * saved
