"""The run of a user's `Trainer` is a run like any other: the same folder, read and judged by the same commands."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import judge, load
from bench.base.paths import BASELINES
from bench.command import cli
from bench.results.runfolder import Run, find_runs
from bench.runner.script import recorder, script_plan
from bench.timeline import FILES
from bench.validate.checks.determinism import unlike
from ddp import Aborted, RunHandle
from ddp.replica.trainable import SUMMED
from ddp.trainer.recording import RecordOrder
from tests.bench.runner.scripts import in_threads, trainer
from tests.runtime import toy


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHandle]:
    """A run that has ended."""
    with in_threads():
        run = trainer(tmp_path_factory.mktemp("out") / "runs").run()
        run.join()
        yield run


def recorded(handle: RunHandle) -> Run:
    assert handle.folder is not None
    (run,), problems = find_runs(handle.folder)
    assert not problems
    return run


def test_the_folder_holds_what_the_benchs_own_runs_hold(handle: RunHandle) -> None:
    run = recorded(handle)
    assert run.path.parts[-3:-1] == ("touch", "nccl_cadence")
    assert run.path.name.startswith("w2-s3-")
    names = {path.name for path in run.path.iterdir()}
    files = {"config.json", "events.jsonl", "metrics.json", "training.log", "graph.json", "report.md", "report.html"}
    assert names >= files | set(FILES) - {"timeline.png"}
    m = run.metrics
    assert (m.status, m.model, m.recipe, m.final.eval_metric, m.target.value) == (
        "ok",
        "touch",
        "script",
        "accuracy",
        None,
    )
    assert m.ledger is not None
    assert m.ledger.exactly_once
    assert (m.epochs_planned, m.batch_size, m.lr, len(m.epochs)) == (2, 8, 0.1, 2)
    assert m.epochs[-1].scalars.keys() == {"right"}
    assert json.loads((run.path / "graph.json").read_text())["parameters"] == m.parameters
    assert load(run.path)["final.eval"][0] == m.final.eval


def test_the_handle_and_the_folder_tell_the_same(handle: RunHandle) -> None:
    epochs = [(e.epoch, e.loss, e.eval, e.scalars) for e in iter(handle.next_metrics, None)]
    assert epochs == [(e.epoch, e.train_loss, e.eval, e.scalars) for e in recorded(handle).metrics.epochs]


@pytest.mark.parametrize(("factor", "differences"), [(1 + 4e-16, 0), (1 + 1e-9, 1)])
def test_scalars_are_equal_however_their_sums_were_cut(handle: RunHandle, factor: float, differences: int) -> None:
    m = recorded(handle).metrics
    last = m.epochs[-1]
    moved = {name: value * factor for name, value in last.scalars.items() if value is not None}
    assert moved != last.scalars
    other = m.model_copy(update={"epochs": [*m.epochs[:-1], last.model_copy(update={"scalars": moved})]})
    assert len(unlike(m, other)) == differences


def test_commands_read_it(handle: RunHandle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(handle).path
    assert cli.dispatch(["validate", str(folder)]) == 4
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line.split()[0] for line in lines[:-1]}
    assert verdicts == {"PASS", "NO_BASELINE"}
    assert all("model=touch" not in line for line in lines), "no command of the bench trains it"
    assert cli.dispatch(["report", str(folder), "--out", str(tmp_path)]) == 0
    assert "touch" in (tmp_path / "report.md").read_text()
    assert cli.dispatch(["replay", str(folder)]) == 0
    capsys.readouterr()
    assert cli.dispatch(["more", str(folder)]) == 0
    train, then = capsys.readouterr().out.splitlines()
    assert train.startswith("by hand: train seed=0,1,2,")
    with_script = "with the script that trained seed=3, mode='nccl_cadence', world_size=2: "
    assert f", mode='solo', world_size=1, output='runs/baselines' {with_script}" in train
    propose = "python -m bench baseline propose runs/baselines --mode solo"
    assert then == f"then: {propose} && python -m bench baseline accept"
    assert cli.dispatch(["dashboard", "export", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "touch" in (tmp_path / "page.html").read_text()


def test_the_verdict_in_python(handle: RunHandle, tmp_path: Path) -> None:
    judgement = judge(handle)
    assert {verdict.name for verdict in judgement.verdicts} == {"PASS", "NO_BASELINE"}
    assert judgement.code == 4
    assert str(judgement).count("PASS ") == sum(verdict.name == "PASS" for verdict in judgement.verdicts)
    assert handle.folder is not None
    assert judge(handle.folder).verdicts == judgement.verdicts
    moved = shutil.copytree(handle.folder, tmp_path / "touch" / "nccl_cadence" / handle.folder.name)
    (moved / "metrics.json").write_text("{}")
    assert judge(moved).code == 4
    assert "REFUSED" in str(judge(moved))
    with pytest.raises(ValueError, match="not a folder"):
        judge(tmp_path / "nothing")


def test_a_run_that_was_not_recorded_has_no_verdict() -> None:
    with in_threads(), pytest.raises(ValueError, match="not recorded: give Trainer"):
        judge(trainer(None, name=None, epochs=1).run())


@pytest.mark.parametrize("mode", ["solo", "graph_sync", "zero1"])
def test_every_mode_is_recorded(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.runner.script.write_report", lambda *paths, **more: None)
    with in_threads():
        run = trainer(tmp_path, mode=mode, world_size=None if mode == "solo" else 2)
        (handle := run.run()).join()
    m = recorded(handle).metrics
    assert (m.mode, m.status) == (mode, "ok")
    assert {verdict.name for verdict in judge(handle).verdicts} <= {"PASS", "NO_BASELINE", "INCONCLUSIVE"}


def evens(epoch: int) -> list[int]:
    return list(range(0, 200, 2))


@pytest.mark.parametrize(
    ("given", "seen", "audited"),
    [
        ({"drop_last": True}, True, True),
        ({"sampler": evens}, False, True),
        ({"eval_step": None}, True, True),
        ({"epoch_callback": lambda epoch, worker: None}, True, False),
    ],
)
def test_whatever_a_task_leaves_out_is_no_failure(
    given: dict[str, object], seen: bool, audited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.runner.script.write_report", lambda *paths, **more: None)
    without = {"eval_dataset": None} if "eval_step" in given else {}
    with in_threads():
        (handle := trainer(tmp_path, audit=True, mode="nccl_sync", **given, **without).run()).join()
    verdicts = judge(handle).verdicts
    assert {verdict.name for verdict in verdicts} == {"PASS", "NO_BASELINE"}
    assert ("visits" in {verdict.check for verdict in verdicts}) is seen
    unaudited = [note for note in recorded(handle).metrics.warnings if "not audited" in note]
    assert len(unaudited) == (not audited)
    assert ("audit" in {verdict.check for verdict in verdicts}) is audited


def test_what_is_not_to_be_recorded_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with in_threads():
        run = trainer(None, name=None).run()
        run.join()
    assert run.folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_recorded_and_raises_as_ever(tmp_path: Path) -> None:
    def broken(model: object, batch: object) -> None:
        raise RuntimeError("a bug of mine")

    with in_threads():
        run = trainer(tmp_path, train_step=broken, tolerate_loss=False).run()
        with pytest.raises(Exception, match="a bug of mine"):
            run.join()
        assert recorded(run).metrics.status == "failed"
        going = trainer(tmp_path, epochs=10**6).run()
        going.next_metrics()
        going.abort()
        with pytest.raises(Aborted):
            going.join()
        assert recorded(going).metrics.status == "killed"
        assert not (recorded(going).path / "report.md").exists()


def test_a_report_that_cannot_be_written_costs_nobody_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path, baseline: Path) -> None:
        assert baseline == BASELINES, "the page said that there is no baseline, and the verdict compared with one"
        raise ValueError("the disk is full")

    monkeypatch.setattr("bench.runner.script.write_report", refuse)
    with in_threads(), pytest.warns(RuntimeWarning, match="is not written: the disk is full"):
        (handle := trainer(tmp_path, epochs=1).run()).join()
    assert recorded(handle).metrics.status == "ok"


def test_what_a_callback_raises_ends_the_run_and_the_records_say_so(tmp_path: Path) -> None:
    def full(checkpoint: object) -> None:
        raise OSError("my shelf is full")

    with in_threads():
        run = trainer(tmp_path / "out", checkpoint_folder=tmp_path / "laid", checkpoint_callback=full).run()
        with pytest.raises(OSError, match="my shelf is full"):
            run.join()
    assert recorded(run).metrics.error == "OSError: my shelf is full"


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"name": None}, "without name: say what the runs are of, such as name='touch'"),
        ({"name": "a/b"}, "name='a/b' must be a word"),
        ({"output": None}, "name='touch' without output"),
        ({"output": ""}, "output='' is no path"),
        ({"output": 3}, "output=3 must be a path, such as output='runs'"),
        ({"target": "high"}, "target='high' must be a finite number"),
    ],
)
def test_mistakes(given: dict[str, object], remedy: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=remedy):
        trainer(**{"output": tmp_path, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_factory": lambda: None}, "must return a torch.nn.Module"),
        ({"optimizer_factory": lambda parameters: None}, "must return an optimizer of PyTorch"),
        ({"optimizer_factory": lambda parameters: []}, "must return an optimizer of PyTorch"),
    ],
)
def test_what_the_factories_may_not_make_is_told_with_a_folder_too(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        trainer(tmp_path, **change).run()


def test_data_that_only_its_own_collate_fn_puts_together_counts_by_its_samples(tmp_path: Path) -> None:
    def data_of(first: int) -> str:
        samples = [{"text": list(range(first, first + length))} for length in (1, 2, 3)]
        made = trainer(tmp_path, dataset=samples, collate_fn=lambda batch: [sample["text"][0] for sample in batch])
        assert made._recording is not None
        order = RecordOrder(made._recording, made._parts, made._job, made._mode, 1.0)
        return str(script_plan(order, str(tmp_path)).spec.config_hash)

    assert data_of(0) == data_of(0) != data_of(5)


@pytest.mark.parametrize(("reduction", "warned"), [("mean", False), ("sum", True)])
def test_a_loss_that_is_a_sum_is_warned_of(tmp_path: Path, reduction: str, warned: bool) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction)

    made = trainer(tmp_path, train_step=loss)
    assert made._recording is not None
    order = RecordOrder(made._recording, made._parts, made._job, made._mode, 1.0)
    assert (SUMMED in script_plan(order, str(tmp_path)).spec.warnings) == warned
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recorder(order)
    assert (SUMMED in [str(each.message) for each in caught]) == warned


class OpensLate(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Opens its file at its first sample, as data sets of HDF5 do."""

    def __init__(self) -> None:
        self.inputs, self.labels = toy.data()
        self.file: Any = None

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.file = self.file or threading.Lock()  # which no more than a file can be sent
        return self.inputs[index], int(self.labels[index])


def test_data_that_opens_its_file_late_and_a_script_that_leaves_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with in_threads():
        handle = trainer(Path("runs"), dataset=OpensLate(), epochs=1).run()
        monkeypatch.chdir(tmp_path / "other")
        handle.join()
    assert handle.folder is not None
    assert handle.folder.is_relative_to(tmp_path / "runs")
